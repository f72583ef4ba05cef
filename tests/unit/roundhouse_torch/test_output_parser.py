"""Reasoning and tool calls out of a model's text: whole, and cut at every place."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from roundhouse_torch.errors import BadRequest
from roundhouse_torch.server.output_parser import OutputParser, joined, thinking_of
from roundhouse_torch.server.tools import Function, Tool, ToolUse, notation_of, tool_use

TOOLS = [Tool(Function("get_weather", {"type": "object", "properties": {}})), Tool(Function("add"))]
HERMES, LLAMA = "hermes", "llama3_json"
ARGUMENTS = '{"city": "Köln }", "deep": {"a": [1, "</tool_call>"]}}'
CALL = '<tool_call>\n{"name": "get_weather", "arguments": ' + ARGUMENTS + "}\n</tool_call>"


def use(notation: str, choice: Any = "auto", parallel: bool = True) -> ToolUse | None:
    return tool_use(TOOLS, choice, parallel, notation)


def parse(text: str, thinking: str, tools: ToolUse | None, cuts: list[int]) -> tuple[dict[str, Any], int]:
    parser, deltas, at = OutputParser(thinking, tools), [], 0
    for cut in cuts:
        deltas += parser.push(text[at:cut])
        at = cut
    deltas += parser.push(text[at:], last=True)
    message = joined(deltas)
    for call in message.get("tool_calls", ()):
        assert call.pop("id").startswith("chatcmpl-tool-")
        assert call.pop("type") == "function"
    return message, parser.calls


def call(name: str, arguments: str) -> dict[str, Any]:
    return {"function": {"name": name, "arguments": arguments}}


CASES: list[tuple[str, str, str, dict[str, Any]]] = [
    ("Hello < world <tool", "", HERMES, {"content": "Hello < world <tool"}),
    (CALL, "", HERMES, {"tool_calls": [call("get_weather", ARGUMENTS)]}),
    ("Let me see.\n" + CALL, "", HERMES, {"content": "Let me see.", "tool_calls": [call("get_weather", ARGUMENTS)]}),
    (
        CALL + '\n<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>',
        "",
        HERMES,
        {"tool_calls": [call("get_weather", ARGUMENTS), call("add", "{}")]},
    ),
    (CALL + "\nDone.", "", HERMES, {"tool_calls": [call("get_weather", ARGUMENTS)], "content": "Done."}),
    (
        '<tool_call>{"arguments": {"a": 1}, "name": "add"}</tool_call>',
        "",
        HERMES,
        {"tool_calls": [call("add", '{"a": 1}')]},
    ),
    (
        '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>',
        "",
        HERMES,
        {"tool_calls": [call("add", '{"a": 1}')]},
    ),
    ("<tool_call>\nnot json\n</tool_call>", "", HERMES, {"content": "<tool_call>\nnot json\n</tool_call>"}),
    ('<tool_call>{"x": 1}</tool_call>', "", HERMES, {"content": '<tool_call>{"x": 1}</tool_call>'}),
    ('<tool_call>{"name": "add", "arguments": {"a"', "", HERMES, {"tool_calls": [call("add", '{"a"')]}),
    ('{"name": "add", "parameters": {"a": 1}}', "", LLAMA, {"tool_calls": [call("add", '{"a": 1}')]}),
    (
        '<|python_tag|>{"type": "function", "name": "add", "parameters": {"a": 1}}; {"name": "add", "parameters": {}}',
        "",
        LLAMA,
        {"tool_calls": [call("add", '{"a": 1}'), call("add", "{}")]},
    ),
    ('It is {"name": "add"}', "", LLAMA, {"content": 'It is {"name": "add"}'}),
    ('{"answer": 5}', "", LLAMA, {"content": '{"answer": 5}'}),
    ("", "", LLAMA, {}),
    ("<think>\nhm < 3\n</think>\n\nFive.", "optional", "", {"reasoning": "\nhm < 3\n", "content": "Five."}),
    ("hm</think>Five.", "begun", "", {"reasoning": "hm", "content": "Five."}),
    ("no end", "begun", "", {"reasoning": "no end"}),
    ("Five <think>.", "optional", "", {"content": "Five <think>."}),
    ("<thin", "optional", "", {"content": "<thin"}),
    (
        "<think>I call.</think>\n" + CALL,
        "optional",
        HERMES,
        {"reasoning": "I call.", "tool_calls": [call("get_weather", ARGUMENTS)]},
    ),
    (
        'why</think>{"name": "add", "parameters": {}}',
        "begun",
        LLAMA,
        {"reasoning": "why", "tool_calls": [call("add", "{}")]},
    ),
]


@pytest.mark.parametrize(("text", "thinking", "notation", "expected"), CASES)
def test_an_answer_is_taken_apart_however_it_is_cut(
    text: str, thinking: str, notation: str, expected: dict[str, Any]
) -> None:
    tools = use(notation) if notation else None
    calls = len(expected.get("tool_calls", ()))
    assert parse(text, thinking, tools, []) == (expected, calls)
    assert parse(text, thinking, tools, list(range(len(text)))) == (expected, calls)
    for seed in range(20):
        cuts = sorted(random.Random(seed).choices(range(len(text) + 1), k=4))
        assert parse(text, thinking, tools, cuts) == (expected, calls)


def test_names_come_first_and_arguments_in_pieces() -> None:
    parser = OutputParser("", use(HERMES))
    pieces = ['<tool_call>{"name": "add",', ' "arguments": {"a"', ": 1", "}", "}"]
    found = [[delta["tool_calls"][0]["function"] for delta in parser.push(piece)] for piece in pieces]
    expected = [
        [],
        [{"name": "add", "arguments": ""}, {"arguments": '{"a"'}],
        [{"arguments": ": 1"}],
        [{"arguments": "}"}],
        [],
    ]
    assert found == expected


def test_only_the_first_call_counts_when_calls_must_not_be_parallel() -> None:
    message, _ = parse(CALL + CALL, "", use(HERMES, parallel=False), [])
    assert message == {"tool_calls": [call("get_weather", ARGUMENTS)]}


def test_what_a_prompt_says_of_thinking() -> None:
    assert thinking_of("…<|im_start|>assistant\n<think>\n") == "begun"
    assert thinking_of("…assistant\n<think>\n\n</think>\n\n") == ""
    assert thinking_of("…<think>x</think>…<|im_start|>assistant\n") == "optional"


def test_the_template_tells_the_notation() -> None:
    assert notation_of("{{ '<tool_call>' }}") == HERMES
    assert notation_of("""{%- if tools %}{"name": function name, "parameters": dictionary}""") == LLAMA
    assert notation_of("{{ messages }}") == ""
    assert notation_of(Path("tests/data/vllm_prefix/template.jinja").read_text()) == HERMES


@pytest.mark.parametrize("notation", [HERMES, LLAMA])
def test_a_forced_call_is_what_the_parser_reads(notation: str) -> None:
    """A grammar accepts exactly the notation, for one function and for several calls."""
    from llguidance import LLMatcher, LLTokenizer

    from tests.support.tiny_models import make_tokenizer

    codec = make_tokenizer(512)
    tokenizer = LLTokenizer(codec.to_str(), n_vocab=512, eos_token=2)

    def accepts(tools: ToolUse | None, text: str) -> bool:
        assert tools is not None
        assert tools.structure is not None
        matcher = LLMatcher(tokenizer, tools.structure.after(""))
        assert not matcher.is_error(), matcher.get_error()
        ids = codec.encode(text).ids
        return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())

    key = "arguments" if notation == HERMES else "parameters"
    weather, add = (json.dumps({"name": name, key: {}}) for name in ("get_weather", "add"))
    wrapped = [f"<tool_call>\n{one}\n</tool_call>" if notation == HERMES else one for one in (weather, add)]
    two = ("\n" if notation == HERMES else "; ").join(wrapped)
    assert accepts(use(notation, "required"), wrapped[1])
    assert accepts(use(notation, "required"), two)
    assert not accepts(use(notation, "required", parallel=False), two)
    assert not accepts(use(notation, "required"), "no")
    named = use(notation, Tool(Function("add")))
    assert accepts(named, wrapped[1])
    assert not accepts(named, wrapped[0])


@pytest.mark.parametrize(
    ("tools", "choice", "notation", "param"),
    [
        ([], "required", HERMES, "tool_choice"),
        (TOOLS, Tool(Function("sub")), HERMES, "tool_choice"),
        (TOOLS, "auto", "", "tool_choice"),
    ],
)
def test_what_cannot_be_called_names_the_field(tools: Any, choice: Any, notation: str, param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        tool_use(tools, choice, True, notation)
    assert caught.value.param == param


@pytest.mark.parametrize(("tools", "choice"), [([], "auto"), (TOOLS, "none"), ([], "none")])
def test_no_tools_no_calls(tools: Any, choice: Any) -> None:
    assert tool_use(tools, choice, True, HERMES) is None
