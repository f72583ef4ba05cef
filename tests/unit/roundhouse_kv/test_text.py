import pytest
from roundhouse_kv.errors import UnsupportedTokenizer
from roundhouse_kv.records import AddedToken, TextRules
from roundhouse_kv.text import TextCodec


def codec(alphabet: str = "byteLevel", **rules: object) -> TextCodec:
    return TextCodec(TextRules(alphabet=alphabet, **rules))  # type: ignore[arg-type]


def test_byte_level_text_is_its_utf8() -> None:
    for text in ("", "plain", " naïve 今天 🙂\x00", "\u2581"):
        assert codec().encode(text) == text.encode()


@pytest.mark.parametrize("normalizers", [(), ("NFC",), ("Lowercase",)])
def test_lone_surrogates_do_not_break_it(normalizers: tuple[str, ...]) -> None:
    assert codec(normalizers=normalizers).encode("a\ud800b") == b"a\xed\xa0\x80b"


def test_normalizers_apply_in_order() -> None:
    assert codec(normalizers=("NFD", "Lowercase")).encode("É") == "e\u0301".encode()
    assert codec(normalizers=("NFKC",)).encode("ﬁ①") == b"fi1"
    assert codec(normalizers=("NFKD",)).encode("é") == "e\u0301".encode()
    assert codec(normalizers=("NFC",)).encode("e\u0301") == "é".encode()


def test_lower_case_knows_no_final_sigma() -> None:
    assert codec(normalizers=("Lowercase",)).encode("ΟΔΟΣ") == "οδοσ".encode()
    assert codec(normalizers=("Lowercase",)).encode("ABC") == b"abc"


def test_prepend_applies_to_each_piece_that_is_not_empty() -> None:
    text = codec("metaspace", normalizers=("Prepend: ",), added_tokens=(AddedToken(content="<s>"),))
    assert text.encode("") == b""
    assert text.encode("a<s>b<s>") == b" a<s> b<s>"


@pytest.mark.parametrize(
    ("scheme", "expected"), [("always", b" a<s> b<s> c"), ("first", b" a<s>b<s> c"), ("never", b"a<s>b<s> c")]
)
def test_prefix_space_schemes(scheme: str, expected: bytes) -> None:
    text = codec("metaspace", prefix_space=scheme, added_tokens=(AddedToken(content="<s>"),))
    assert text.encode("a<s>b<s> c") == expected


def test_the_first_piece_is_first_only_at_the_start_of_the_text() -> None:
    text = codec("metaspace", prefix_space="first", added_tokens=(AddedToken(content="<s>"),))
    assert text.encode("<s>a") == b"<s>a"
    assert text.encode("\u2581a") == b" a"


def test_the_metaspace_character_is_a_space_but_not_inside_added_tokens() -> None:
    text = codec("metaspace", added_tokens=(AddedToken(content="<\u2581>"),))
    assert text.encode("a\u2581b<\u2581>") == "a b<\u2581>".encode()


def test_added_tokens_swallow_white_space_beside_them() -> None:
    tokens = (AddedToken(content="<l>", lstrip=True), AddedToken(content="<r>", rstrip=True), AddedToken(content="<n>"))
    text = codec(added_tokens=tokens)
    assert text.encode("a \n<l> b <r>\u2003\t c <n> d") == b"a<l> b <r>c <n> d"
    assert text.encode("<r>  ") == b"<r>"
    assert text.encode("  <l>") == b"<l>"
    assert text.encode("<r>  <l>x") == b"<r><l>x"
    assert text.encode("<r>\x1c x") == b"<r>\x1c x"


def test_the_longest_added_token_wins() -> None:
    tokens = (AddedToken(content="<a>"), AddedToken(content="<a><b>", rstrip=True))
    assert codec(added_tokens=tokens).encode("<a> <a><b> x") == b"<a> <a><b>x"


def test_normalized_tokens_are_found_in_normalized_text() -> None:
    tokens = (AddedToken(content="<a>", normalized=True, rstrip=True), AddedToken(content="<B>"))
    text = codec(normalizers=("NFKC", "Lowercase"), added_tokens=tokens)
    assert text.encode("＜Ａ＞  x<B>Y<b>") == b"<a>x<B>y<b>"


def test_an_added_token_without_content_is_ignored() -> None:
    assert codec(added_tokens=(AddedToken(content="", lstrip=True),)).encode(" a ") == b" a "


def test_a_completion_starts_with_the_bos() -> None:
    text = codec("metaspace", prefix_space="first", bos="<s>", added_tokens=(AddedToken(content="<s>", rstrip=True),))
    assert text.encode_completion("  a") == b"<s>  a"
    assert text.encode_completion("a") == b"<s> a"


def test_rules_of_a_newer_agent_are_refused() -> None:
    with pytest.raises(UnsupportedTokenizer, match="StripAccents"):
        codec(normalizers=("StripAccents",))
