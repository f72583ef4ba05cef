"""Engine kind ``torch``."""
