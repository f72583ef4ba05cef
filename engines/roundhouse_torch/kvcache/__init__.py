"""The paged KV cache: which block holds what (``blocks``, pure), names of contents (``chain``), the memory
(``storage``).
"""
