import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from roundhouse_sim import tokens
from roundhouse_sim.model import FILES, model_file
from tokenizers import Tokenizer

hugging_face = Tokenizer.from_str(model_file("tokenizer.json").decode())
pieces = st.one_of(st.text(max_size=20), st.sampled_from(["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|", "|>"]))


@given(st.lists(pieces, max_size=8).map("".join))
def test_tokenizer_json_says_the_same(text: str) -> None:
    ids = tokens.to_ids(tokens.encode(text))
    assert ids == hugging_face.encode(text).ids
    assert hugging_face.decode(ids, skip_special_tokens=False) == text


@given(st.lists(pieces, max_size=8).map("".join))
def test_decode_undoes_encode(text: str) -> None:
    assert tokens.decode(tokens.encode(text)) == text


def test_one_token_is_one_byte() -> None:
    assert tokens.to_ids(tokens.encode("é!")) == [0xC3, 0xA9, 0x21]


def test_lone_surrogates_become_question_marks() -> None:
    assert tokens.to_ids(tokens.encode("a\ud800")) == [97, 63]


def test_ids_outside_the_vocabulary_are_refused() -> None:
    assert tokens.to_ids(tokens.from_ids([0, 255, 258])) == [0, 255, 258]
    for bad in (-1, tokens.VOCABULARY):
        with pytest.raises(ValueError, match="outside the vocabulary"):
            tokens.from_ids([bad])


def test_keys_chain_over_full_blocks() -> None:
    root = tokens.root_key("")
    keys = tokens.block_keys("abcdefgh__", 4, root)
    assert len(keys) == 2
    assert tokens.block_keys("efgh", 4, keys[0]) == keys[1:]
    assert tokens.block_keys("abcdefgh", 4, tokens.root_key("tenant"))[0] != keys[0]


def test_config_tells_parameters_and_every_file_is_there() -> None:
    config = json.loads(model_file("config.json"))
    assert config["vocab_size"] == tokens.VOCABULARY
    assert config["num_parameters"] == 70_000_000_000
    assert all(model_file(name) for name in FILES)
    with pytest.raises(KeyError):
        model_file("../errors.py")
