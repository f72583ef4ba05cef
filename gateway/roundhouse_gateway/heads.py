"""HTTP heads that are seen again and again: parsed once, then found by their bytes.

A client sends the same head with each request on its connection, and an engine with each answer, but for the digits of
``content-length``. These are cut out, and what is left is the key: equal keys are equal heads but for that number, so
nothing that a parser has refused or read otherwise can be mistaken for it. Only what a real parser (httptools) has
accepted gets in.
"""

from collections.abc import Iterable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

HEADS_KEPT: Final = 1024
LONGEST_KEPT: Final = 4096
MAX_DIGITS: Final = 15

_LENGTH_NAMES: Final = (b"\r\ncontent-length: ", b"\r\nContent-Length: ")
_NAME_BYTES: Final = len(_LENGTH_NAMES[0])


def cut_length(head: bytes) -> tuple[bytes, int]:
    """(head without the digits of its first ``content-length``, that number); (head, -1) when there is none."""
    at = head.find(_LENGTH_NAMES[0])
    if at < 0:
        at = head.find(_LENGTH_NAMES[1])
        if at < 0:
            return head, -1
    begin = at + _NAME_BYTES
    end = head.find(b"\r\n", begin)
    digits = head[begin:end]
    if not digits.isdigit() or len(digits) > MAX_DIGITS:
        return head, -1
    return head[:begin] + head[end:], int(digits)


class LastHead(Generic[T]):
    """The head that one connection saw last. Most connections see no other, and comparing is cheaper than hashing."""

    __slots__ = ("_after", "_before", "_digits", "length", "parsed")

    def __init__(self, head: bytes, parsed: T) -> None:
        """``head`` is whole and as `cut_length` takes it."""
        key, length = cut_length(head)
        at = next((at for name in _LENGTH_NAMES if (at := head.find(name)) >= 0), -1) if length >= 0 else -1
        begin = at + _NAME_BYTES if at >= 0 else len(head)
        self._before = head[:begin]
        self._after = key[begin:]
        self._digits = 1  # of the length, the last time
        self.parsed = parsed
        self.length = -1

    def match(self, data: bytes) -> int:
        """Where the body begins when ``data`` begins with this head, else 0. Then ``length`` is that of the body."""
        before, after = self._before, self._after
        if not data.startswith(before):
            return 0
        begin = len(before)
        if not after:
            return begin
        end = begin + self._digits
        if not data.startswith(after, end):
            end = data.find(b"\r", begin, begin + MAX_DIGITS + 1)
            if end < 0 or not data.startswith(after, end):
                return 0
            self._digits = end - begin
        digits = data[begin:end]
        if not digits.isdigit():
            return 0
        self.length = int(digits)
        return end + len(after)


class HeadCache(Generic[T]):
    """What was read of a head, by `cut_length`'s key. Bounded: when it is full it begins anew."""

    __slots__ = ("_kept", "get")

    def __init__(self) -> None:
        self._kept: dict[bytes, T] = {}
        self.get = self._kept.get

    def __len__(self) -> int:
        return len(self._kept)

    def values(self) -> Iterable[T]:
        return self._kept.values()

    def put(self, key: bytes, parsed: T) -> None:
        if len(key) <= LONGEST_KEPT:
            if len(self._kept) >= HEADS_KEPT:
                self._kept.clear()
            self._kept[key] = parsed
