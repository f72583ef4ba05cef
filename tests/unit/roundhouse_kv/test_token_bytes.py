"""Bytes of ids and bytes of text against the ``tokenizers`` library, over the kinds of tokenizers that models use."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roundhouse_kv.errors import UnsupportedTokenizer
from roundhouse_kv.text import TextCodec
from roundhouse_kv.token_bytes import TokenBytes
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SPECIAL = ["<s>", "</s>", "[INST]", "[/INST]", "<unk>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
CORPUS = [
    "The quick brown fox jumps over the lazy dog, and then it sleeps.",
    "def add(first, second):\n    return first + second\n",
    "naïve café résumé, Ünïcödé; 今天天气很好，我们去公园散步吧。",
    "I'll see you at 10:30, won't I? 3.14159 * 2 = 6.28318",
] * 4


def _train(tokenizer: Tokenizer, trainer: Any) -> Tokenizer:
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def byte_level(*, prefix: bool = False, normalizer: Any = None, bos: bool = False) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    _train(
        tokenizer,
        trainers.BpeTrainer(
            vocab_size=600, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )  # fmt: skip
    return with_bos(tokenizer) if bos else tokenizer


def llama3_like() -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(r"\s+|\w+", "isolated"),
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return with_bos(tokenizer, processors.ByteLevel(trim_offsets=False))


def with_bos(tokenizer: Tokenizer, *first: Any) -> Tokenizer:
    template = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("<s>", "</s>")]
    )
    tokenizer.post_processor = processors.Sequence([*first, template]) if first else template
    return tokenizer


def phi_like() -> Tokenizer:
    tokenizer = byte_level()
    sides = {"<|end|>": (False, True), "<|mask|>": (True, False), "<|both|>": (True, True)}
    tokenizer.add_special_tokens(
        [AddedToken(content, lstrip=left, rstrip=right) for content, (left, right) in sides.items()]
    )
    return tokenizer


def neox_like() -> Tokenizer:
    tokenizer = byte_level(normalizer=normalizers.NFC())
    tokenizer.add_tokens([AddedToken(" " * n, normalized=True) for n in range(2, 6)])
    tokenizer.add_tokens([AddedToken("<tool>", normalized=True, rstrip=True)])
    return tokenizer


def metaspace(scheme: str, *, bos: bool = False) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    _train(tokenizer, trainers.BpeTrainer(vocab_size=900, special_tokens=SPECIAL + BYTES, show_progress=False))
    return without_byte_tokens(with_bos(tokenizer) if bos else tokenizer)


def gemma_like() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    _train(tokenizer, trainers.BpeTrainer(vocab_size=900, special_tokens=SPECIAL + BYTES, show_progress=False))
    return without_byte_tokens(tokenizer)


def llama2_legacy() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=900, special_tokens=SPECIAL + BYTES, show_progress=False, max_token_length=8
    )
    return without_byte_tokens(with_bos(_train(tokenizer, trainer)))


def without_byte_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """The trainer takes byte tokens only as special ones; in real files they are plain vocabulary."""
    spec = json.loads(tokenizer.to_str())
    spec["added_tokens"] = [each for each in spec["added_tokens"] if each["content"] not in BYTES]
    return Tokenizer.from_str(json.dumps(spec))


def unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=200, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False)
    return _train(tokenizer, trainer)


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "byte level": byte_level,
    "byte level, NFC, BOS (Qwen)": lambda: byte_level(normalizer=normalizers.NFC(), bos=True),
    "byte level, prefix space (RoBERTa)": lambda: byte_level(prefix=True),
    "byte level, lower case": lambda: byte_level(normalizer=normalizers.Lowercase()),
    "byte level, NFD and NFKD": lambda: byte_level(
        normalizer=normalizers.Sequence([normalizers.NFD(), normalizers.NFKD()])
    ),
    "byte level, strips (Phi)": phi_like,
    "byte level, runs of spaces (GPT-NeoX)": neox_like,
    "byte level, sequence (Llama 3)": llama3_like,
    "metaspace always": lambda: metaspace("always"),
    "metaspace first, BOS (Mistral)": lambda: metaspace("first", bos=True),
    "metaspace never": lambda: metaspace("never"),
    "metaspace by normalizer (Gemma)": gemma_like,
    "metaspace by prepending (Llama 2)": llama2_legacy,
    "unigram, NFKC (T5)": unigram,
}  # fmt: skip


@cache
def made(kind: str) -> tuple[Tokenizer, TokenBytes]:
    tokenizer = KINDS[kind]()
    return tokenizer, TokenBytes.load(tokenizer.to_str())


TEXTS = [
    "Hello world, this is fine.",
    "def f(x):\n    return  x+1\n\n\n\tif y:\t z",
    "  leading", "trailing  \n ", " ", "", "\n",
    "今天天气很好。東京、한국어",
    "a🙂b👩‍👩‍👧‍👦 𝔘",
    "e\u0301a\u0300 caf\u00e9 \u212b \u1e9b\u0323",
    "ﬁ ① ½ ™ ｆｕｌｌ ＜ｓ＞",
    "<s>[INST] Hi there [/INST] ok </s>next",
    "a  <s>  b </s> </s>c",
    "x <|end|>  \n y<|end|>z <|mask|>\u2003<|both|> \u3000q<tool>  r",
    "a\x00b\x07\u200b\ufeffc\xa0d\x1ce",
    "ꙮ𒀀 \U0010ffff\ufffd",
    "a ▁b▁▁", "▁x", "<0x41>x", "ΟΔΟΣ İstanbul",
    "<tool>  \n", "<tool>    \n  x",
]  # fmt: skip


def assert_equal(kind: str, text: str) -> None:
    tokenizer, table = made(kind)
    codec = TextCodec(table.rules)
    for special in (False, True):
        ids = tokenizer.encode(text, add_special_tokens=special).ids
        if table.opaque & set(ids):
            continue
        suffix = b"</s>" if special and tokenizer.post_processor is not None else b""
        expected = codec.encode_completion(text) + suffix if special else codec.encode(text)
        assert table.bytes(ids) == expected, (kind, text, special)


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_of_ids_equal_bytes_of_text(kind: str) -> None:
    for text in TEXTS:
        assert_equal(kind, text)


_PIECES = st.one_of(
    st.sampled_from([*SPECIAL, "<|end|>", "<|mask|>", "<|both|>", "<tool>", " ", "  ", "\n", "▁", "\u3000", "<0x41>"]),
    st.text(max_size=8),
)


@pytest.mark.parametrize("kind", KINDS)
@given(st.lists(_PIECES, max_size=8).map("".join))
@settings(max_examples=60, deadline=None)
def test_bytes_of_ids_equal_bytes_of_any_text(kind: str, text: str) -> None:
    if any(0xD800 <= ord(c) < 0xE000 for c in text):
        return
    assert_equal(kind, text)


def test_unigram_marks_unknown_text_as_opaque() -> None:
    tokenizer, table = made("unigram, NFKC (T5)")
    assert table.opaque == {tokenizer.token_to_id("<unk>")}
    assert table.opaque & set(tokenizer.encode("ꙮ").ids)


@pytest.mark.parametrize("kind", ["byte level", "metaspace always"])
def test_where_every_byte_has_a_token_nothing_is_opaque(kind: str) -> None:
    assert made(kind)[1].opaque == frozenset()


def test_bos_is_what_the_post_processor_puts_first() -> None:
    assert made("metaspace first, BOS (Mistral)")[1].rules.bos == "<s>"
    assert made("byte level, sequence (Llama 3)")[1].rules.bos == "<s>"
    assert made("byte level")[1].rules.bos == ""


def test_roberta_like_processors_put_their_cls_first() -> None:
    tokenizer = byte_level()
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0))
    assert TokenBytes.load(tokenizer.to_str()).rules.bos == "<s>"


def test_ids_that_the_tokenizer_does_not_have_are_a_key_error() -> None:
    _, table = made("byte level")
    assert table.bytes([]) == b""
    for wrong in ([-1], [len(table)], [0, 10**9]):
        with pytest.raises(KeyError, match=str(wrong[-1])):
            table.bytes(wrong)


def test_a_hole_in_the_vocabulary_is_a_key_error() -> None:
    spec = json.loads(made("byte level")[0].to_str())
    spec["added_tokens"].append({"id": 5000, "content": "<far>", "special": True})
    table = TokenBytes.load(json.dumps(spec))
    assert table.bytes([5000]) == b"<far>"
    with pytest.raises(KeyError, match="4999"):
        table.bytes([4999])


def test_it_loads_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(made("byte level")[0].to_str(), encoding="utf-8")
    assert TokenBytes.load(path).rules == made("byte level")[1].rules
    with pytest.raises(UnsupportedTokenizer, match="cannot be read"):
        TokenBytes.load(tmp_path / "missing.json")


def spec_with(**changes: Any) -> str:
    return json.dumps({**json.loads(made("byte level")[0].to_str()), **changes})


def _word_piece() -> str:
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    _train(tokenizer, trainers.WordPieceTrainer(vocab_size=300, special_tokens=SPECIAL, show_progress=False))
    return str(tokenizer.to_str())


_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_TOKEN = {"id": 4, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
REFUSED: dict[str, tuple[Callable[[], str], str]] = {
    "WordPiece": (_word_piece, "WordPiece"),
    "a model without a name": (lambda: spec_with(model={"vocab": {}}), "unnamed"),
    "neither alphabet": (lambda: spec_with(pre_tokenizer=None, decoder=None), "neither byte-level nor metaspace"),
    "StripAccents": (lambda: spec_with(normalizer={"type": "StripAccents"}), "StripAccents"),
    "another Replace": (
        lambda: spec_with(normalizer={"type": "Replace", "pattern": {"Regex": " +"}, "content": " "}), "Replace"
    ),
    "white space dropped": (
        lambda: spec_with(
            pre_tokenizer={"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, _BYTE_LEVEL]}
        ),
        "WhitespaceSplit drops text",
    ),
    "matches dropped": (
        lambda: spec_with(
            pre_tokenizer={"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"String": " "}, "behavior": "Removed", "invert": False}, _BYTE_LEVEL]}
        ),
        "Split drops text",
    ),
    "spaces put inside": (
        lambda: spec_with(
            pre_tokenizer={"type": "Sequence", "pretokenizers": [
                {"type": "Digits", "individual_digits": True}, {**_BYTE_LEVEL, "add_prefix_space": True}]}
        ),
        "spaces inside text",
    ),
    "another metaspace": (
        lambda: spec_with(
            pre_tokenizer={"type": "Metaspace", "replacement": "_", "prepend_scheme": "never", "split": True},
            decoder=None,
        ),
        "Metaspace with '_'",
    ),
    "single words": (lambda: spec_with(added_tokens=[{**_TOKEN, "content": "w", "single_word": True}]), "single words"),
    "a token that the normalizer changes": (
        lambda: spec_with(
            normalizer={"type": "Lowercase"}, added_tokens=[{**_TOKEN, "content": "<W>", "normalized": True}]
        ),
        "changed by the normalizer",
    ),
    "an odd post-processor": (lambda: spec_with(post_processor={"type": "Odd"}), "Odd"),
    "word endings": (
        lambda: spec_with(model={"type": "BPE", "vocab": {}, "merges": [], "end_of_word_suffix": "</w>"}), "end_of_word"
    ),
    "no JSON": (lambda: "{", "cannot be read"),
    "no model": (lambda: "{}", "not as expected"),
    "not an object": (lambda: "[]", "not as expected"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_reproduced_is_refused_with_its_reason(case: str) -> None:
    make, reason = REFUSED[case]
    with pytest.raises(UnsupportedTokenizer, match=reason):
        TokenBytes.load(make())


def test_a_bpe_model_of_an_old_file_needs_no_type() -> None:
    spec = json.loads(made("byte level")[0].to_str())
    del spec["model"]["type"]
    assert TokenBytes.load(json.dumps(spec)).rules == made("byte level")[1].rules


def test_old_files_say_add_prefix_space_instead_of_a_scheme() -> None:
    spec = json.loads(made("metaspace always")[0].to_str())
    spec["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True}
    assert TokenBytes.load(json.dumps(spec)).rules.prefix_space == "always"
    spec["pre_tokenizer"]["add_prefix_space"] = False
    assert TokenBytes.load(json.dumps(spec)).rules.prefix_space == "never"


def test_byte_level_pieces_outside_the_alphabet_spell_themselves() -> None:
    spec = json.loads(made("byte level")[0].to_str())
    spec["model"]["vocab"]["☃"] = 700
    assert TokenBytes.load(json.dumps(spec)).bytes([700]) == "☃".encode()
