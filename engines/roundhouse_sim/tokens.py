"""The shipped tokenizer: one token per UTF-8 byte, id = byte value, and a few special tokens from 256 on.

A sequence of tokens is a `str` whose code points are the token ids (`Tokens`): it slices, hashes and concatenates at C
speed, which lists of ints do not. ``data/tokenizer.json`` is the same tokenizer for everybody else.
"""

import re
from array import array
from collections.abc import Iterable
from typing import Final, NewType

from xxhash import xxh3_64_intdigest

Tokens = NewType("Tokens", str)

SPECIAL_TOKENS: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
END_OF_TURN: Final = Tokens(chr(258))
VOCABULARY: Final = 256 + len(SPECIAL_TOKENS)

_SPECIAL = re.compile("(" + "|".join(map(re.escape, SPECIAL_TOKENS)) + ")")
_IDS: Final = {text: chr(256 + index) for index, text in enumerate(SPECIAL_TOKENS)}


def encode(text: str) -> Tokens:
    """Special tokens typed in ``text`` become special, as Hugging Face tokenizers do. Lone surrogates become ``?``."""
    if "<|" not in text:
        return Tokens(text.encode("utf-8", "replace").decode("latin-1"))
    pieces = _SPECIAL.split(text)
    return Tokens("".join(_IDS.get(piece) or piece.encode("utf-8", "replace").decode("latin-1") for piece in pieces))


def decode(tokens: Tokens) -> str:
    """Text of the tokens, special ones included; bytes that are no UTF-8 become U+FFFD."""
    spelled = bytearray()
    for char in tokens:
        code = ord(char)
        if code < 256:
            spelled.append(code)
        else:
            spelled += SPECIAL_TOKENS[code - 256].encode()
    return spelled.decode("utf-8", "replace")


def from_ids(ids: Iterable[int]) -> Tokens:
    """Raises `ValueError` for an id outside the vocabulary."""
    tokens = []
    for token in ids:
        if not 0 <= token < VOCABULARY:
            raise ValueError(f"token id {token} is outside the vocabulary of {VOCABULARY}")
        tokens.append(chr(token))
    return Tokens("".join(tokens))


def to_ids(tokens: str) -> list[int]:
    return array("H", tokens.encode("utf-16-le")).tolist()


def token_strings(tokens: Tokens) -> list[str]:
    """Each token as text, for ``return_token_strs``."""
    return [decode(Tokens(char)) for char in tokens]


def root_key(salt: str) -> int:
    """Where a chain of block keys starts."""
    return xxh3_64_intdigest(f"roundhouse-sim\0{salt}".encode())


def block_keys(tokens: str, size: int, parent: int) -> list[int]:
    """Chained keys of the full blocks of ``tokens``."""
    data = memoryview(tokens.encode("utf-16-le"))
    keys: list[int] = []
    width = 2 * size
    for start in range(0, len(data) - width + 1, width):
        parent = xxh3_64_intdigest(data[start : start + width], parent)
        keys.append(parent)
    return keys
