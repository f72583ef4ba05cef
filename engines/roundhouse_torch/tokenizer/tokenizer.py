"""The model's own tokenizer, from ``tokenizer.json``."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from roundhouse_kv.errors import UnsupportedTokenizer
from roundhouse_kv.token_bytes import TokenBytes
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from roundhouse_torch.errors import BrokenModel

PRIMING = 4
"""Prompt tokens that a detokenizer looks at first, so that the answer's leading space is right."""


class TextTokenizer:
    """Thread safe. ``encode`` lets go of the interpreter lock, so long texts may be given to a thread."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._spellings: dict[int, tuple[str, bytes]] = {}

    @classmethod
    def load(cls, folder: Path) -> "TextTokenizer":
        """Raises `BrokenModel`."""
        path = folder / "tokenizer.json"
        if not path.exists():
            raise BrokenModel(f"tokenizer.json is missing from {folder}")
        try:
            return cls(Tokenizer.from_file(str(path)))
        except Exception as error:  # the library raises nothing narrower
            raise BrokenModel(f"{path} is unreadable: {error}") from error

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
        return text

    def spelling(self, id: int) -> tuple[str, bytes]:
        """A single token's text, and its bytes, of which the text may show a part as a replacement character."""
        known = self._spellings.get(id)
        if known is None:
            text = self.decode((id,))
            known = (text, text.encode())
            with suppress(KeyError):  # ids that only fill up the model's vocabulary
                known = (text, self._bytes.bytes((id,))) if self._bytes is not None else known
            self._spellings[id] = known
        return known

    @cached_property
    def _bytes(self) -> TokenBytes | None:
        try:
            return TokenBytes.load(self._tokenizer.to_str())
        except UnsupportedTokenizer:
            return None

    def hides(self, texts: Iterable[str]) -> bool:
        """One of ``texts`` is a special token, which would be left out of an answer's text."""
        special = {token.content for token in self._tokenizer.get_added_tokens_decoder().values() if token.special}
        return not special.isdisjoint(texts)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The vocabulary's spelling of each token."""
        return [self._tokenizer.id_to_token(id) or "" for id in ids]

    def detokenizer(self, prompt: Sequence[int], *, skip_special_tokens: bool) -> "Detokenizer":
        return Detokenizer(self._tokenizer, prompt, skip_special_tokens)


class Detokenizer:
    """Text of an answer, token by token. Never gives a part of a character; what is incomplete waits for `flush`."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._stream = DecodeStream(ids=list(prompt[-PRIMING:]), skip_special_tokens=skip_special_tokens)
        self._held: list[int] = []

    def push(self, token: int) -> str:
        """Text that this token completes, maybe none."""
        self._held.append(token)
        try:
            text: str | None = self._stream.step(self._tokenizer, token)
        except Exception:  # the library's "invalid prefix", raised as plain Exception: begin anew with what is held
            self._stream = DecodeStream(skip_special_tokens=self._skip_special_tokens)
            return self.flush()
        if text is None:
            return ""
        self._held.clear()
        return text

    def flush(self) -> str:
        """What is still held, with replacement characters where bytes are missing."""
        held, self._held = self._held, []
        return self._tokenizer.decode(held, skip_special_tokens=self._skip_special_tokens) if held else ""
