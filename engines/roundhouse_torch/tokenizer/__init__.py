"""Text ↔ tokens: encoding, chat templates, incremental decoding, stop strings."""
