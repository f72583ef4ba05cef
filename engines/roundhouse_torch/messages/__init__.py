"""What server and engine process say to each other."""
