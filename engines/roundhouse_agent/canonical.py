"""Are these tokens what the tokenizer makes of their own bytes?

A gateway predicts from text, so a block is worth announcing only if the same text would be tokenised into the same
tokens; generated text and prompts given as ids often are not. Each block keeps an *unverified tail*: its last tokens
from the second-last pre-token on, which what follows may still change. A check re-encodes tail and new tokens
together and compares all but the last two pre-tokens of that.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from roundhouse_kv.token_bytes import TokenBytes

MAX_TAIL: Final = 512  # tokens; one pre-token that is longer (an endless word) cannot be verified at bearable cost


class Encoding(Protocol):
    """The part of ``tokenizers.Encoding`` that is used."""

    ids: list[int]
    word_ids: list[int | None]


class Tokenizer(Protocol):
    """The part of ``tokenizers.Tokenizer`` that is used."""

    def encode(self, sequence: str, *, add_special_tokens: bool) -> Encoding: ...


class CanonicalCheck:
    def __init__(self, tokenizer: Tokenizer, table: TokenBytes) -> None:
        self._tokenizer = tokenizer
        self._table = table

    def tails(self, before: Sequence[int], tokens: Sequence[int], block_size: int) -> list[tuple[int, ...]]:
        """The unverified tail of each new block, as far as blocks are canonical; ``before`` is the parent's tail."""
        known = [*before, *tokens]
        text = self._text(known)
        if text is None:
            return []
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        starts = _word_starts(encoding.word_ids)
        sure = _second_last_start(starts, len(starts))
        wrong = next((i for i in range(sure) if known[i] != encoding.ids[i]), None)
        tails: list[tuple[int, ...]] = []
        for end in range(len(before) + block_size, len(known) + 1, block_size):
            if wrong is not None and wrong < end:
                break
            start = _second_last_start(starts, end) if end <= sure else sure
            if end - start > MAX_TAIL:
                break
            tails.append(tuple(known[start:end]))
        return tails

    def _text(self, tokens: Sequence[int]) -> str | None:
        """What the tokens spell, less a character that the end cuts; None for bytes that are no text at all."""
        data = self._table.bytes(tokens)
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            return data[: error.start].decode() if error.reason == "unexpected end of data" else None


def _word_starts(words: Sequence[int | None]) -> list[int]:
    """For each token the index of the first token of its pre-token."""
    starts: list[int] = []
    for i, word in enumerate(words):
        starts.append(starts[-1] if i and word is not None and word == words[i - 1] else i)
    return starts


def _second_last_start(starts: Sequence[int], end: int) -> int:
    """Where the second-last pre-token of the first ``end`` tokens begins."""
    last = starts[end - 1] if end else 0
    return starts[last - 1] if last else 0
