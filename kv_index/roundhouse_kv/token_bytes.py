"""Token id → bytes from a ``tokenizer.json``, and the rules by which text becomes the same bytes."""

from collections.abc import Iterable
from pathlib import Path

from roundhouse_kv.records import TextRules


class TokenBytes:
    """``opaque`` holds ids that stand for unknown text (``<unk>``): a chain of keys ends there."""

    rules: TextRules
    opaque: frozenset[int]

    @classmethod
    def load(cls, tokenizer_json: str | bytes | Path) -> "TokenBytes":
        """From the file's path or its JSON text. Raises `UnsupportedTokenizer` with the reason."""
        raise NotImplementedError

    def bytes(self, ids: Iterable[int]) -> bytes:
        """What these tokens spell; raises `KeyError` for an id that the tokenizer does not have."""
        raise NotImplementedError
