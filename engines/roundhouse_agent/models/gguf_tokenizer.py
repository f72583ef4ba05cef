"""GGUF vocabulary → ``tokenizer.json``, ``tokenizer_config.json`` and the chat template, for byte-level BPE.

A GGUF names its pre-tokenizer (``tokenizer.ggml.pre``) but does not hold it; a wrong one gives other token ids for
the same text, so only those written down here are accepted. Vocabularies of SentencePiece type are refused: their
merges are not in the file.
"""

from collections.abc import Mapping
from typing import Any, Final

from roundhouse_agent.errors import UnsupportedModel

_UNUSED, _CONTROL, _USER_DEFINED = 5, 3, 4
_REMEDY: Final = "use the model's safetensors repository"

_WORD = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _WORD + r"\p{N}{1,3}" + _REST
_QWEN2 = _WORD + r"\p{N}" + _REST


def _byte_level(use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _sequence(first: dict[str, Any], use_regex: bool) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": [first, _byte_level(use_regex)]}


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


_DIGITS = {"type": "Digits", "individual_digits": True}

# name → (pre-tokenizer, normalizer, whole words of the vocabulary are taken without merging)
_PRE: Final[Mapping[str, tuple[dict[str, Any], dict[str, Any] | None, bool]]] = {
    "gpt-2": (_byte_level(True), None, False),
    "smollm": (_sequence(_DIGITS, True), None, False),
    "llama-bpe": (_sequence(_split(_LLAMA3), False), None, True),
    "qwen2": (_sequence(_split(_QWEN2), False), {"type": "NFC"}, False),
}


def tokenizer_json(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Raises `UnsupportedModel` for any other tokenizer than a known byte-level BPE."""
    model, pre = meta.get("tokenizer.ggml.model"), str(meta.get("tokenizer.ggml.pre", "gpt-2"))
    if model != "gpt2":
        raise UnsupportedModel(f"GGUF tokenizer {model!r} cannot be converted (known: byte-level BPE): {_REMEDY}")
    if pre not in _PRE:
        raise UnsupportedModel(f"GGUF pre-tokenizer {pre!r} is not known (known: {', '.join(_PRE)}): {_REMEDY}")
    try:
        tokens, merges = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.merges"]
    except KeyError as error:
        raise UnsupportedModel(f"GGUF metadata lacks {error.args[0]}: {_REMEDY}") from error
    kinds = meta.get("tokenizer.ggml.token_type", [1] * len(tokens))
    pre_tokenizer, normalizer, whole_words = _PRE[pre]
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [_added(i, tokens[i], k) for i, k in enumerate(kinds) if k in (_CONTROL, _USER_DEFINED)],
        "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "post_processor": _post_processor(meta, tokens),
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
            "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "ignore_merges": whole_words,
            "vocab": {token: i for i, (token, kind) in enumerate(zip(tokens, kinds, strict=True)) if kind != _UNUSED},
            "merges": [merge.split(" ", 1) for merge in merges],
        },
    }  # fmt: skip


def tokenizer_config(meta: Mapping[str, Any]) -> dict[str, Any]:
    tokens = meta["tokenizer.ggml.tokens"]
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": _adds_bos(meta),
        "clean_up_tokenization_spaces": False,
    }
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    for field, name in names.items():
        if (index := meta.get(f"tokenizer.ggml.{name}_token_id")) is not None:
            config[field] = tokens[index]
    return config


def special_ids(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Special token ids for ``config.json`` and ``generation_config.json``; the end of a turn also ends the text."""
    ids: dict[str, Any] = {}
    for field, name in (("bos_token_id", "bos"), ("eos_token_id", "eos"), ("pad_token_id", "padding")):
        if (index := meta.get(f"tokenizer.ggml.{name}_token_id")) is not None:
            ids[field] = index
    turn = meta.get("tokenizer.ggml.eot_token_id")
    if turn is not None and turn != ids.get("eos_token_id"):
        ids["eos_token_id"] = [index for index in (ids.get("eos_token_id"), turn) if index is not None]
    return ids


def _added(index: int, content: str, kind: int) -> dict[str, Any]:
    return {
        "id": index, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
        "special": kind == _CONTROL,
    }  # fmt: skip


def _adds_bos(meta: Mapping[str, Any]) -> bool:
    # llama.cpp adds the beginning-of-text token for Llama 3 unless the file says otherwise.
    return bool(meta.get("tokenizer.ggml.add_bos_token", meta.get("tokenizer.ggml.pre") == "llama-bpe"))


def _post_processor(meta: Mapping[str, Any], tokens: list[str]) -> dict[str, Any]:
    text = [{"Sequence": {"id": "A", "type_id": 0}}]
    pair = [*text, {"Sequence": {"id": "B", "type_id": 1}}]
    bos = meta.get("tokenizer.ggml.bos_token_id")
    if not _adds_bos(meta) or bos is None:
        return {"type": "TemplateProcessing", "single": text, "pair": pair, "special_tokens": {}}
    name = tokens[bos]
    start = {"SpecialToken": {"id": name, "type_id": 0}}
    return {
        "type": "TemplateProcessing", "single": [start, *text], "pair": [start, *pair],
        "special_tokens": {name: {"id": name, "ids": [bos], "tokens": [name]}},
    }  # fmt: skip
