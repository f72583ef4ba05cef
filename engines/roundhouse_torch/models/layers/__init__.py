"""Building blocks that model families share. Plain callables over tensors; weights come in ready to use."""
