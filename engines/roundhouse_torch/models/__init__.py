"""What a model folder says (``config``), its weights (``checkpoint``, ``weights``), one module per model family over
shared ``layers``, and ``loading``: all of it on a device, with its KV memory.
"""
