"""Text → the bytes that its tokens spell, without a tokenizer. One function for the gateway and the agent.

With byte-level tokens and no normaliser that is just UTF-8. Otherwise the text is cut like the tokenizer cuts it:
first at added tokens that match raw text, then, after each piece was normalised, at those that match normalised text;
what is left gets its prefix space. Added tokens swallow the white space beside them when they say so.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from roundhouse_kv.errors import UnsupportedTokenizer
from roundhouse_kv.records import AddedToken, TextRules

METASPACE: Final = "\u2581"
PREPEND: Final = "Prepend:"
# Unicode's White_Space, which is what tokenizers strip; str.isspace() also takes U+001C to U+001F.
_SPACES: Final = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)

Piece = tuple[str, bool]


class TextCodec:
    """Raises `UnsupportedTokenizer` for rules that it does not know (they come from a newer agent)."""

    def __init__(self, rules: TextRules) -> None:
        self.rules = rules
        self._normalizers = [_normalizer(name) for name in rules.normalizers]
        self._raw = _Cutter(token for token in rules.added_tokens if not token.normalized)
        self._late = _Cutter(token for token in rules.added_tokens if token.normalized)
        self._bos = rules.bos.encode("utf-8", "surrogatepass")
        self._metaspace = rules.alphabet == "metaspace"
        self.plain = (
            not self._metaspace
            and not self._normalizers
            and rules.prefix_space == "never"
            and not any(token.lstrip or token.rstrip for token in rules.added_tokens)
        )

    def encode(self, text: str) -> bytes:
        """Equal to the bytes of ``tokenizer.encode(text, add_special_tokens=False)``. Never raises."""
        if not self.plain:
            text = "".join(self._spell(text))
        return text.encode("utf-8", "surrogatepass")

    def encode_completion(self, text: str) -> bytes:
        """The same with ``add_special_tokens=True``, without what would come after the text."""
        return self._bos + self.encode(text)

    def _spell(self, text: str) -> Iterator[str]:
        start = True
        for raw, is_token in self._raw.cut(text):
            for piece, cut_late in [(raw, True)] if is_token else self._late.cut(self._normalize(raw)):
                yield piece if cut_late else self._prefixed(piece, start)
                start = False

    def _normalize(self, text: str) -> str:
        for normalize in self._normalizers:
            text = normalize(text)
        return text

    def _prefixed(self, piece: str, start: bool) -> str:
        if self._metaspace:
            piece = piece.replace(METASPACE, " ")
        scheme = self.rules.prefix_space
        wanted = scheme == "always" or (scheme == "first" and start)
        return " " + piece if wanted and not piece.startswith(" ") else piece


class _Cutter:
    """Cuts text at added tokens, leftmost first, the longest of those that begin there."""

    def __init__(self, tokens: Iterable[AddedToken]) -> None:
        self._tokens = {token.content: token for token in tokens if token.content}
        longest_first = sorted(self._tokens, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def cut(self, text: str) -> Iterator[Piece]:
        """Pieces and whether they are tokens; empty ones are left out."""
        done = 0
        for match in self._pattern.finditer(text) if self._pattern is not None else ():
            token = self._tokens[match[0]]
            between = text[done : match.start()]
            if token.lstrip:
                between = between.rstrip(_SPACES)
            if between:
                yield between, False
            yield token.content, True
            # A match inside the blanks that the last token swallowed gives back what lies behind it: tokenizers do so.
            done = match.end()
            if token.rstrip:
                done = len(text) - len(text[done:].lstrip(_SPACES))
        if done < len(text):
            yield text[done:], False


def _normalizer(name: str) -> Callable[[str], str]:
    if name in ("NFC", "NFD", "NFKC", "NFKD"):
        form: Any = name
        return lambda text: text if text.isascii() else unicodedata.normalize(form, text)
    if name == "Lowercase":
        return _lower
    if name.startswith(PREPEND):
        prefix = name.removeprefix(PREPEND)
        return lambda text: prefix + text if text else text
    raise UnsupportedTokenizer(f"normalizer {name!r} is not known here")


def _lower(text: str) -> str:
    """Character by character, as tokenizers do it: no special final sigma."""
    return text.lower() if text.isascii() else "".join([c.lower() for c in text])
