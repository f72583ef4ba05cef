"""Triton kernels of the CUDA path, one file each.

Each has a plain PyTorch twin in ``reference``. Without a GPU the kernels are checked two ways: numerics in Triton's
interpreter (fp32 and fp16; bf16 is wrong there), and compilation for sm_80, sm_90 and sm_100 by ``report``.
Every kernel computes in fp32 and stores in the tensor's own type.
"""
