"""What a model folder says (``config``), its weights (``checkpoint``, ``weights``), and one module per model family."""
