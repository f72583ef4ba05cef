"""The paged KV cache: which block holds what (``blocks``), names of contents (``chain``), the memory (``storage``)."""
