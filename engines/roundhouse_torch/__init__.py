"""The bundled engine: an OpenAI server over a PyTorch model with a paged, prefix-reusing KV cache.

Two processes. The *server* (``server/``, ``tokenizer/``, ``events/``) speaks HTTP, renders and tokenises prompts,
turns tokens back into text and publishes KV events; it never imports torch. The *engine* (``engine/``,
``scheduler/``, ``kvcache/``, ``models/``, ``kernels/``) plans a step, runs the model and samples. They exchange the
frames of ``messages/`` over one socket pair. ``__main__`` starts the engine before anything heavy is imported, so that
both load side by side.
"""

__version__ = "0.1.0"
