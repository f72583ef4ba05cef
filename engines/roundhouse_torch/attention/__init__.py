"""Attention over the paged cache: the interface that a device's kernels implement, and the PyTorch implementation."""
