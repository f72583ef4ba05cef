"""vLLM's normalisation of messages and tools (rules ``vllm-1``)."""

from typing import Any

import pytest
from roundhouse_kv.errors import RenderError
from roundhouse_kv.messages import MARK, Message, normalise_messages, normalise_tools

NAMES_DEVELOPER = "{% if m.role == 'developer' %}"


def as_text(*messages: Any, template: str = "") -> list[Message]:
    return normalise_messages(list(messages), listed=False, template=template)


def as_parts(*messages: Any, template: str = "") -> list[Message]:
    return normalise_messages(list(messages), listed=True, template=template)


def text(value: str) -> dict[str, str]:
    return {"type": "text", "text": value}


def test_text_stays_text_or_becomes_one_part() -> None:
    message = {"role": "user", "content": "hi"}
    assert as_text(message) == [message]
    assert as_parts(message) == [{"role": "user", "content": [text("hi")]}]


def test_no_content_is_empty() -> None:
    assert as_text({"role": "assistant"}, {"role": "user", "content": None}) == [
        {"role": "assistant", "content": ""},
        {"role": "user", "content": ""},
    ]
    assert as_parts({"role": "assistant", "content": None}) == [{"role": "assistant", "content": []}]


def test_parts_are_joined_by_newlines_or_stay_parts() -> None:
    content = [
        text("a"), "b", {"type": "refusal", "refusal": "c"}, {"type": "input_text", "text": "d"},
        {"type": "output_text", "text": "e"}, {"type": "thinking", "thinking": "f"}, {"type": "text", "text": None},
    ]  # fmt: skip
    message = {"role": "user", "content": content}
    assert as_text(message) == [{"role": "user", "content": "a\nb\nc\nd\ne\nf"}]
    assert as_parts(message) == [{"role": "user", "content": [text(letter) for letter in "abcdef"]}]


def test_tool_messages_are_always_text() -> None:
    message = {"role": "tool", "tool_call_id": "1", "content": [text("a"), text("b")]}
    expected = [{"role": "tool", "tool_call_id": "1", "content": "a\nb"}]
    assert as_text(message) == as_parts(message) == expected
    assert as_text({"role": "tool", "content": "x"}) == [{"role": "tool", "content": "x"}]


def test_a_part_that_is_no_text_is_marked() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:"}}
    audio = {"type": "input_audio", "input_audio": {}}
    message = {"role": "user", "content": [text("a"), image, text("b"), audio]}
    assert as_text(message) == [{"role": "user", "content": MARK}]
    assert as_parts(message) == [
        {
            "role": "user",
            "content": [text("a"), text(MARK), {"type": "image"}, text("b"), text(MARK), {"type": "audio"}],
        }
    ]


def test_only_known_fields_are_kept() -> None:
    message = {"role": "user", "content": "x", "name": "bob", "cache_control": 1, "tool_calls": [1], "reasoning": "r"}
    assert as_text(message) == [{"role": "user", "content": "x", "name": "bob"}]
    assert as_text({"role": "user", "content": "x", "name": 7}) == [{"role": "user", "content": "x"}]


def test_reasoning_goes_by_both_names_but_is_read_by_one() -> None:
    base = {"role": "assistant", "content": "a"}
    assert as_text({**base, "reasoning": "r"}) == [{**base, "reasoning": "r", "reasoning_content": "r"}]
    assert as_text({**base, "reasoning_content": "r"}) == [base]


def test_arguments_of_tool_calls_become_objects() -> None:
    def call(arguments: Any) -> dict[str, Any]:
        return {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}

    message = {"role": "assistant", "content": None, "tool_calls": [call('{"a": 1}'), call(""), call({"b": 2})]}
    (result,) = as_text(message)
    assert [each["function"]["arguments"] for each in result["tool_calls"]] == [{"a": 1}, {}, {"b": 2}]
    assert result["tool_calls"][0]["id"] == "1"
    assert message["tool_calls"][0]["function"]["arguments"] == '{"a": 1}'  # type: ignore[index]


def test_no_tool_calls_are_dropped() -> None:
    assert as_text({"role": "assistant", "content": "a", "tool_calls": []}) == [{"role": "assistant", "content": "a"}]


def test_a_developer_speaks_as_the_system_where_the_template_has_no_such_role() -> None:
    assert as_text({"role": "developer", "content": "d"}, {"role": "user", "content": "u"}) == [
        {"role": "system", "content": "d"},
        {"role": "user", "content": "u"},
    ]


def test_a_developer_behind_others_is_merged_with_all_system_messages_in_front() -> None:
    messages = [
        {"role": "system", "content": "s"}, {"role": "user", "content": "u"}, {"role": "developer", "content": ""},
        {"role": "developer", "content": [text("d"), text("e")]},
    ]  # fmt: skip
    expected = [{"role": "system", "content": "s\n\nd\ne"}, {"role": "user", "content": "u"}]
    assert as_text(*messages) == expected
    assert as_parts(*messages) == [expected[0], {"role": "user", "content": [text("u")]}]


def test_system_messages_alone_stay_where_they_are() -> None:
    messages = [{"role": "user", "content": "u"}, {"role": "system", "content": "s"}]
    assert as_text(*messages) == messages


def test_a_template_that_names_the_developer_gets_it_with_its_tools() -> None:
    message = {"role": "developer", "content": "d", "tools": [1]}
    assert as_text(message, template=NAMES_DEVELOPER) == [message]
    assert as_text({"role": "developer", "content": "d"}, template='"developer"')[0]["tools"] is None


def test_the_billing_line_is_cut_from_the_system_text_only() -> None:
    line = "x-anthropic-billing-header: cc_version=2; cch=abc;\n"
    image = {"type": "image_url"}
    assert as_text({"role": "system", "content": line + "You are"}) == [{"role": "system", "content": "You are"}]
    assert as_text({"role": "user", "content": line}) == [{"role": "user", "content": line}]
    assert as_parts({"role": "system", "content": [text(line), image]})[0]["content"] == [
        text(""), text(MARK), {"type": "image"}
    ]  # fmt: skip


@pytest.mark.parametrize(
    "messages",
    [
        None, "text", [], 7, {"role": "user"}, ["text"], [{}], [{"role": 1}], [{"role": "user", "content": 5}],
        [{"role": "user", "content": [5]}],
        [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}]}],
        [{"role": "assistant", "tool_calls": [{"function": {"arguments": 5}}]}],
        [{"role": "assistant", "tool_calls": [{"function": {"arguments": "[" * 100_000}}]}],
        [{"role": "assistant", "tool_calls": [{}]}],
        [{"role": "assistant", "tool_calls": ["x"]}],
        [{"role": "assistant", "tool_calls": 5}],
    ],
)  # fmt: skip
def test_malformed_messages_have_no_prediction(messages: Any) -> None:
    with pytest.raises(RenderError):
        normalise_messages(messages, listed=False, template="")


def test_tools_get_every_declared_field_in_its_place() -> None:
    assert normalise_tools(None) is None
    assert normalise_tools([]) == []
    (tool,) = normalise_tools([{"x": 1, "function": {"strict": True, "parameters": {}, "name": "f"}}]) or []
    assert list(tool.items()) == [
        ("type", "function"),
        ("function", {"name": "f", "description": None, "parameters": {}, "strict": True}),
        ("x", 1),
    ]
    assert list(tool["function"]) == ["name", "description", "parameters", "strict"]


@pytest.mark.parametrize("tools", ["x", {"a": 1}, [1], [{}], [{"function": "f"}]])
def test_malformed_tools_have_no_prediction(tools: Any) -> None:
    with pytest.raises(RenderError):
        normalise_tools(tools)
