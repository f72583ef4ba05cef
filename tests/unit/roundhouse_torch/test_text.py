"""Incremental decoding, stop strings, chat templates."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roundhouse_torch.errors import BadRequest, BrokenModel
from roundhouse_torch.tokenizer.stops import StopMatcher
from roundhouse_torch.tokenizer.template import ChatTemplate
from roundhouse_torch.tokenizer.tokenizer import TextTokenizer

from tests.support.tiny_models import CHAT_TEMPLATE, SPECIAL_TOKENS, make_tokenizer

TOKENIZER = TextTokenizer(make_tokenizer(512))
PLAIN = st.integers(len(SPECIAL_TOKENS), 300)


def stream(ids: list[int], **options: Any) -> list[str]:
    detokenizer = TOKENIZER.detokenizer([], skip_special_tokens=options.get("skip_special_tokens", True))
    return [*(detokenizer.push(id) for id in ids), detokenizer.flush()]


@given(st.lists(PLAIN, max_size=40))
def test_pieces_add_up_to_the_decoded_whole(ids: list[int]) -> None:
    assert "".join(stream(ids)) == TOKENIZER.decode(ids)


@given(st.text(max_size=30))
def test_no_piece_ends_inside_a_character(text: str) -> None:
    ids = TOKENIZER.encode(text, add_special_tokens=False)
    pieces = stream(ids)
    assert "".join(pieces) == text
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text


def test_special_tokens_are_left_out_unless_asked_for() -> None:
    ids = [1, *TOKENIZER.encode("hi", add_special_tokens=False), 2]
    assert "".join(stream(ids)) == "hi"
    assert "".join(stream(ids, skip_special_tokens=False)) == "<|im_start|>hi<|im_end|>"


@settings(max_examples=300)
@given(
    st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.data(), st.booleans()
)
def test_a_stop_string_never_leaks_however_the_text_is_cut(
    text: str, stops: list[str], data: st.DataObject, include: bool
) -> None:
    matcher = StopMatcher(stops, include=include)
    shown, start = "", 0
    while start < len(text) and matcher.matched is None:
        end = data.draw(st.integers(start + 1, len(text)))
        shown += matcher.push(text[start:end])
        assert all(shown.find(stop) < 0 for stop in stops) or matcher.matched is not None
        start = end
    if matcher.matched is None:
        assert shown + matcher.flush() == text
        assert not any(stop in text for stop in stops)
    else:
        body = shown.removesuffix(matcher.matched) if include else shown
        assert text.startswith(body + matcher.matched)
        assert include == shown.endswith(matcher.matched) or not include
        assert not any(stop in body for stop in stops)


def test_only_a_possible_beginning_of_a_stop_string_is_held() -> None:
    matcher = StopMatcher(["</end>"])
    assert matcher.push("abc <") == "abc "
    assert matcher.push("b") == "<b"
    assert matcher.push("</en") == ""
    assert matcher.push("d>xyz") == ""
    assert matcher.matched == "</end>"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "<e>"}, "bos_token": "<s>"}')
    return tmp_path


def test_a_chat_is_rendered_with_the_generation_prompt(folder: Path) -> None:
    body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]}
    assert ChatTemplate(folder).render(body) == "<|im_start|>user\na\nb<|im_end|>\n<|im_start|>assistant\n"


def test_the_last_message_is_continued(folder: Path) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "The answer"}]
    body = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}
    assert ChatTemplate(folder).render(body).endswith("<|im_start|>assistant\nThe answer")


def test_special_tokens_and_arguments_reach_the_template(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ bos_token }}{{ eos_token }}{{ mood }}")
    body = {"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"mood": "calm"}}
    assert ChatTemplate(folder).render(body) == "<s><e>calm"


def test_what_the_template_refuses_is_the_clients_fault(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(BadRequest, match="roles must alternate"):
        ChatTemplate(folder).render({"messages": [{"role": "user", "content": "a"}]})


def test_images_are_refused(folder: Path) -> None:
    messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    with pytest.raises(BadRequest, match="text only"):
        ChatTemplate(folder).render({"messages": messages})


def test_a_model_without_template_says_so(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="no chat template"):
        ChatTemplate(tmp_path).render({"messages": [{"role": "user", "content": "a"}]})


def test_a_template_that_does_not_compile_is_a_broken_model(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{% if %}")
    with pytest.raises(BrokenModel, match="does not compile"):
        ChatTemplate(folder)


def test_the_template_may_stand_in_the_tokenizer_config(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer_config.json"
    path.write_text('{"chat_template": "one"}')
    assert ChatTemplate(tmp_path).source == "one"
    path.write_text(
        '{"chat_template": [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "two"}]}'
    )
    assert ChatTemplate(tmp_path).source == "two"


def test_a_missing_or_damaged_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(BrokenModel, match=r"tokenizer\.json is missing"):
        TextTokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(BrokenModel, match="unreadable"):
        TextTokenizer.load(tmp_path)
