"""What a device computes: in PyTorch (``plain``: any device, and what the others are checked against), and for CUDA in
Triton, one file per kernel.

Without a GPU the Triton kernels are checked two ways: numerics in the interpreter (fp32 and fp16; bf16 is wrong there)
against ``plain`` in fp32 or ``reference``, and compilation for sm_80, sm_90 and sm_100 by ``report``. Every kernel
computes in fp32 and stores in the tensor's own type.
"""
