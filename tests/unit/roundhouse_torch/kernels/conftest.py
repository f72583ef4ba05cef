"""Kernels run in Triton's interpreter here; it must be chosen before they are decorated."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")
