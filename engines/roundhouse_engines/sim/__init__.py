"""Engine kind ``sim``."""
