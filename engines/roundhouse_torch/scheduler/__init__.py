"""What to compute next. Deterministic: no clock, no I/O, no tensors; so it is tested by the thousand random runs."""
