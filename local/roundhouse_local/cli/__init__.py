"""The `roundhouse` command. Errors are one line; exit codes: 1 it did not work, 2 it was asked for wrongly."""
