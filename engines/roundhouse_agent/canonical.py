"""Are these tokens what the tokenizer makes of their own bytes?

A gateway predicts from text, so a block is worth announcing only if the same text would be tokenised into the same
tokens; generated text and prompts given as ids often are not. Each block keeps an *unverified tail*: its last tokens
from the second-last pre-token on, which what follows may still change. A check re-encodes tail and new tokens
together and compares all but the last two pre-tokens of that.

A pre-token may be very long (a base64 blob, a run of Chinese). Of one beyond `MAX_TAIL` tokens only the end is kept,
marked `CUT`: that pre-token is taken as it is, and checking goes on with the next one.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from roundhouse_kv.token_bytes import TokenBytes

MAX_TAIL: Final = 128
CUT: Final = -1  # first element of a tail that begins inside a pre-token


class Encoding(Protocol):
    """The part of ``tokenizers.Encoding`` that is used."""

    @property
    def ids(self) -> list[int]: ...

    @property
    def word_ids(self) -> list[int | None]: ...


class Tokenizer(Protocol):
    """The part of ``tokenizers.Tokenizer`` that is used."""

    def encode(self, sequence: str, *, add_special_tokens: bool) -> Encoding: ...


class CanonicalCheck:
    def __init__(self, tokenizer: Tokenizer, table: TokenBytes) -> None:
        self._tokenizer = tokenizer
        self._table = table

    def tails(self, before: Sequence[int], tokens: Sequence[int], block_size: int) -> list[tuple[int, ...]]:
        """The unverified tail of each new block, as far as blocks are canonical; ``before`` is the parent's tail."""
        cut = len(before) > 0 and before[0] == CUT
        old = before[1:] if cut else before
        known = [*old, *tokens]
        text = self._text(known)
        if text is None:
            return []
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        ids, starts = encoding.ids, _word_starts(encoding.word_ids)
        if cut:
            ids, starts = self._aligned(known, ids, starts)
        sure = _second_last_start(starts, len(starts))
        wrong = next((i for i in range(sure) if known[i] != ids[i]), len(known))
        tails: list[tuple[int, ...]] = []
        for end in range(len(old) + block_size, len(known) + 1, block_size):
            if wrong < end:
                break
            start = _second_last_start(starts, end) if end <= sure else sure
            tails.append(self._tail(known, start, end, cut=cut and start == 0))
        return tails

    def _tail(self, known: Sequence[int], start: int, end: int, *, cut: bool) -> tuple[int, ...]:
        if end - start > MAX_TAIL:
            start, cut = end - MAX_TAIL, True
            while start < end and self._continues_character(known[start]):
                start += 1
        return (CUT, *known[start:end]) if cut else tuple(known[start:end])

    def _continues_character(self, token: int) -> bool:
        first = self._table.bytes((token,))[:1]
        return bool(first) and first[0] & 0xC0 == 0x80

    def _aligned(self, known: Sequence[int], ids: Sequence[int], starts: Sequence[int]) -> tuple[list[int], list[int]]:
        """``ids`` and ``starts`` with the first pre-token replaced by the tokens that ``known`` has for it."""
        words_end = next((i for i, start in enumerate(starts) if start), len(ids))
        if words_end == len(ids):
            return list(known), [0] * len(known)
        left = len(self._table.bytes(ids[:words_end]))
        known_end = 0
        while left > 0:
            left -= len(self._table.bytes((known[known_end],)))
            known_end += 1
        # A token that reaches over the pre-token's end (left < 0) is never canonical; the comparison finds it, because
        # the pre-token behind the end then begins in its middle.
        if left < 0:
            known_end -= 1
        shift = words_end - known_end
        return [*known[:known_end], *ids[words_end:]], [0] * known_end + [start - shift for start in starts[words_end:]]

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
