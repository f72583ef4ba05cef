"""Token id → bytes from a ``tokenizer.json``, and the rules by which text becomes the same bytes.

Only tokenizers whose text → bytes mapping `TextCodec` can reproduce are taken: byte-level BPE, and metaspace models
(▁ for a space, ``<0xNN>`` for a byte). Everything that drops or changes text in another way is refused with its name;
whoever serves such a model is routed without an index.
"""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from roundhouse_kv.errors import UnsupportedTokenizer
from roundhouse_kv.records import AddedToken, TextRules
from roundhouse_kv.text import METASPACE, PREPEND, TextCodec

_MODELS: Final = ("BPE", "Unigram")
_NORMALIZERS: Final = ("NFC", "NFD", "NFKC", "NFKD", "Lowercase")
_CUTTING: Final = ("Split", "Digits", "Punctuation", "UnicodeScripts", "FixedLength")
_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-F]{2})>")

Entries = list[bytes | None]


class TokenBytes:
    """``opaque`` holds ids that stand for unknown text (``<unk>``): a chain of keys ends there."""

    def __init__(self, table: Entries, rules: TextRules, opaque: frozenset[int]) -> None:
        self._table = table
        self.rules = rules
        self.opaque = opaque

    @classmethod
    def load(cls, tokenizer_json: str | bytes | Path) -> "TokenBytes":
        """From the file's path, or from its JSON text. Raises `UnsupportedTokenizer` with the reason."""
        try:
            data = tokenizer_json.read_bytes() if isinstance(tokenizer_json, Path) else tokenizer_json
            spec = json.loads(data)
        except (OSError, ValueError) as error:
            raise UnsupportedTokenizer(f"tokenizer.json cannot be read: {error}") from error
        try:
            return _Reader(spec).read()
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise UnsupportedTokenizer(f"tokenizer.json is not as expected: {error!r}") from error

    def bytes(self, ids: Iterable[int]) -> bytes:
        """What these tokens spell. Raises `KeyError` for an id that the tokenizer does not have."""
        table = self._table
        wanted = list(ids)
        try:
            if wanted and min(wanted) < 0:
                raise IndexError
            return b"".join([table[i] for i in wanted])  # type: ignore[misc]
        except (IndexError, TypeError) as error:
            unknown = [i for i in wanted if not 0 <= i < len(table) or table[i] is None]
            raise KeyError(f"the tokenizer has no token {unknown[0]}") from error

    def known(self) -> Entries:
        """By id, None where a chain of keys ends."""
        return [None if number in self.opaque else entry for number, entry in enumerate(self._table)]

    def __len__(self) -> int:
        return len(self._table)


class _Reader:
    """One tokenizer.json being read."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self.model: Mapping[str, Any] = spec["model"]
        self.added: list[Mapping[str, Any]] = spec.get("added_tokens") or []
        self.normalizers = _flat(spec.get("normalizer"))
        self.splitters = _flat(spec.get("pre_tokenizer"))
        self.decoders = _flat(spec.get("decoder"))
        self.processors = _flat(spec.get("post_processor"))
        kind = self.model.get("type") or ("BPE" if "merges" in self.model else "")
        if kind not in _MODELS:
            raise UnsupportedTokenizer(f"{kind or 'unnamed'} model: its tokens do not spell their text")
        for affix in ("continuing_subword_prefix", "end_of_word_suffix"):
            if self.model.get(affix):
                raise UnsupportedTokenizer(f"model with {affix} {self.model[affix]!r}")
        self.byte_level = any(each["type"] == "ByteLevel" for each in self.splitters + self.normalizers)
        self.metaspace = not self.byte_level and (
            any(each["type"] == "Metaspace" for each in self.splitters + self.decoders)
            or any(_is_metaspace_replace(each) for each in self.normalizers)
        )
        if not self.byte_level and not self.metaspace:
            raise UnsupportedTokenizer("neither byte-level nor metaspace tokens")
        vocab = self.model["vocab"]
        pieces = vocab.items() if isinstance(vocab, dict) else ((piece[0], i) for i, piece in enumerate(vocab))
        self.vocab: dict[str, int] = dict(pieces)

    def read(self) -> TokenBytes:
        table = self._table()
        rules = TextRules(
            alphabet="byteLevel" if self.byte_level else "metaspace",
            normalizers=self._normalizer_names(),
            prefix_space=self._prefix_space(),
            bos=self._prefix(table),
            added_tokens=tuple(self._added_token(each) for each in self.added),
        )
        self._check_normalized(rules)
        return TokenBytes(table, rules, self._opaque())

    def _table(self) -> list[bytes | None]:
        ids = [*self.vocab.values(), *(each["id"] for each in self.added)]
        table: list[bytes | None] = [None] * (max(ids) + 1)
        for piece, number in self.vocab.items():
            table[number] = self._spelling(piece)
        for each in self.added:
            table[each["id"]] = each["content"].encode("utf-8", "surrogatepass")
        return table

    def _spelling(self, piece: str) -> bytes:
        if self.byte_level:
            if all(c in _BYTE_OF for c in piece):
                return bytes([_BYTE_OF[c] for c in piece])
            return piece.encode("utf-8", "surrogatepass")
        if self.model.get("byte_fallback") and (match := _BYTE_TOKEN.fullmatch(piece)):
            return bytes([int(match[1], 16)])
        return piece.replace(METASPACE, " ").encode("utf-8", "surrogatepass")

    def _normalizer_names(self) -> tuple[str, ...]:
        names: list[str] = []
        for each in self.normalizers:
            kind = each["type"]
            if kind in _NORMALIZERS:
                names.append(kind)
            elif kind == "Prepend":
                prefix = each["prepend"]
                names.append(PREPEND + (prefix.replace(METASPACE, " ") if self.metaspace else prefix))
            elif kind != "ByteLevel" and not (self.metaspace and _is_metaspace_replace(each)):
                raise UnsupportedTokenizer(f"normalizer {kind}")
        return tuple(names)

    def _prefix_space(self) -> Any:
        """The scheme; refuses pre-tokenizers that drop text or that would put spaces inside it."""
        scheme = "never"
        for place, each in enumerate(self.splitters):
            kind = each["type"]
            if kind == "ByteLevel":
                wanted = "always" if each.get("add_prefix_space", True) else "never"
            elif kind == "Metaspace":
                wanted = each.get("prepend_scheme") or ("always" if each.get("add_prefix_space", True) else "never")
                if each.get("replacement", METASPACE) != METASPACE:
                    raise UnsupportedTokenizer(f"Metaspace with {each['replacement']!r}")
            elif kind in _CUTTING and each.get("behavior") != "Removed":
                continue
            else:
                raise UnsupportedTokenizer(f"pre-tokenizer {kind} drops text")
            if wanted != "never" and place:
                raise UnsupportedTokenizer(f"pre-tokenizer {kind} puts spaces inside text")
            scheme = wanted if wanted != "never" else scheme
        return scheme

    def _prefix(self, table: list[bytes | None]) -> str:
        """What the post-processor puts before one text."""
        prefix = ""
        for each in self.processors:
            if each["type"] == "TemplateProcessing":
                for part in each["single"]:
                    if "Sequence" in part:
                        break
                    ids = each["special_tokens"][part["SpecialToken"]["id"]]["ids"]
                    prefix += b"".join(table[i] or b"" for i in ids).decode()
            elif each["type"] in ("BertProcessing", "RobertaProcessing"):
                prefix += each["cls"][0]
            elif each["type"] != "ByteLevel":
                raise UnsupportedTokenizer(f"post-processor {each['type']}")
        return prefix

    def _added_token(self, each: Mapping[str, Any]) -> AddedToken:
        if each.get("single_word"):
            raise UnsupportedTokenizer(f"added token {each['content']!r} matches single words only")
        return AddedToken(
            content=each["content"],
            special=bool(each.get("special")),
            lstrip=bool(each.get("lstrip")),
            rstrip=bool(each.get("rstrip")),
            normalized=bool(each.get("normalized")) and bool(self.normalizers),
        )

    def _check_normalized(self, rules: TextRules) -> None:
        """A token that matches other text than it spells would be wrong in every place."""
        bare = TextCodec(TextRules(alphabet="byteLevel", normalizers=rules.normalizers))
        for token in rules.added_tokens:
            if token.normalized and bare.encode(token.content) != token.content.encode("utf-8", "surrogatepass"):
                raise UnsupportedTokenizer(f"added token {token.content!r} is changed by the normalizer")

    def _opaque(self) -> frozenset[int]:
        """``<unk>`` stands for text only where not every byte has a token."""
        if self.byte_level:
            complete = all(c in self.vocab for c in _BYTE_OF)
        else:
            complete = bool(self.model.get("byte_fallback")) and all(f"<0x{b:02X}>" in self.vocab for b in range(256))
        if complete:
            return frozenset()
        unknown = self.model.get("unk_token")
        number = self.vocab.get(unknown) if unknown is not None else self.model.get("unk_id")
        return frozenset() if number is None else frozenset({number})


def _flat(part: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """The steps of a possibly nested Sequence."""
    if not part:
        return []
    for inner in ("pretokenizers", "decoders", "normalizers", "processors"):
        if inner in part:
            return [step for each in part[inner] for step in _flat(each)]
    return [part]


def _is_metaspace_replace(step: Mapping[str, Any]) -> bool:
    return (
        step["type"] == "Replace" and step.get("content") == METASPACE and step.get("pattern", {}).get("String") == " "
    )


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's characters for bytes: printable ones stand for themselves, the rest follow from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    alphabet.update({chr(256 + n): byte for n, byte in enumerate(others)})
    return alphabet


_BYTE_OF: Final = _byte_alphabet()
