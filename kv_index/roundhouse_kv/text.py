"""Text → the bytes that its tokens spell, without a tokenizer. One function for the gateway and the agent."""

from roundhouse_kv.records import TextRules


class TextCodec:
    def __init__(self, rules: TextRules) -> None:
        self.rules = rules

    def encode(self, text: str) -> bytes:
        """Equal to the concatenated bytes of ``tokenizer.encode(text, add_special_tokens=False)``."""
        raise NotImplementedError
