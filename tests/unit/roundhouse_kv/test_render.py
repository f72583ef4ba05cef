"""The renderer against ``transformers``' own, over several templates and shapes of requests."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roundhouse_kv.errors import RenderError
from roundhouse_kv.keys import CHUNK_BYTES, chain_keys, root_key
from roundhouse_kv.messages import normalise_messages, normalise_tools
from roundhouse_kv.records import Profile, TextRules
from roundhouse_kv.render import Rendered, Renderer, content_format
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
BLOCKS = """
{{- bos_token }}
{%- set ns = namespace(system='') %}
{% for message in messages %}
    {% if message.role == 'system' %}
        {% set ns.system = message.content | trim %}
        {% continue %}
    {% endif %}
    {% generation %}
[{{ message.role }}] {{ message.content | trim }}{{ eos_token }}
    {% endgeneration %}
{% endfor %}
{% if tools %}
{{ tools | tojson }}
{{ tools | tojson(indent=2) }}
{% endif %}
{% if ns.system %}system: {{ ns.system }}{% endif %}
{% if thinking is defined and thinking %}<think>{% endif %}
{% if add_generation_prompt %}[assistant]{% endif %}
"""
PARTS = """
{%- for message in messages %}
<{{ message['role'] }}>
{%- for part in message['content'] %}
{%- if part['type'] == 'text' %}{{ part['text'] }}{% else %}<|{{ part['type'] }}|>{% endif %}
{%- endfor %}
{%- for call in message.tool_calls or [] %}{{ call.function.name }}({{ call.function.arguments | tojson }}){% endfor %}
{%- endfor %}
{%- if add_generation_prompt %}<assistant>{% endif %}"""
TEMPLATES = {"smollm2": SMOLLM2, "blocks": BLOCKS, "parts": PARTS}
VARIABLES = {"bos_token": "<s>", "eos_token": "</s>"}

USER = {"role": "user", "content": '  Hi <b>there</b> & "you" é 今天\n'}
SYSTEM = {"role": "system", "content": "Be terse."}
ANSWER = {"role": "assistant", "content": "Yes,  "}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": "<é>"}'}}],
}
RESULT = {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "21"}]}
TOOLS = [{"type": "function", "function": {"name": "f", "description": "a <b> é", "parameters": {"type": "object"}}}]
BODIES: dict[str, dict[str, Any]] = {
    "one": {"messages": [USER]},
    "system": {"messages": [SYSTEM, USER]},
    "turns": {"messages": [SYSTEM, USER, ANSWER, USER]},
    "tools": {"messages": [USER], "tools": TOOLS},
    "calls": {"messages": [USER, CALL, RESULT], "tools": TOOLS},
    "no prompt": {"messages": [USER, ANSWER], "add_generation_prompt": False},
    "variables": {"messages": [USER], "chat_template_kwargs": {"thinking": True, "bos_token": "<other>"}},
    "continued": {"messages": [USER, ANSWER], "add_generation_prompt": False, "continue_final_message": True},
    "continued words": {
        "messages": [USER, {"role": "assistant", "content": "a a"}],
        "add_generation_prompt": False,
        "continue_final_message": True,
    },
}


def profile(template: str, **fields: Any) -> Profile:
    return Profile(
        text=TextRules(alphabet="byteLevel"), chat_template=template, variables=VARIABLES,
        content_format=content_format(template), exact=True, **fields,
    )  # type: ignore[arg-type]  # fmt: skip


def reference(template: str, body: dict[str, Any]) -> str:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), **VARIABLES)
    messages = normalise_messages(body["messages"], listed=content_format(template) == "openai", template=template)
    text = tokenizer.apply_chat_template(
        messages, tools=normalise_tools(body.get("tools")), chat_template=template, tokenize=False,
        add_generation_prompt=body.get("add_generation_prompt", True),
        continue_final_message=body.get("continue_final_message", False), **body.get("chat_template_kwargs", {}),
    )  # fmt: skip
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("case", BODIES)
def test_it_renders_what_transformers_renders(name: str, case: str) -> None:
    template, body = TEMPLATES[name], BODIES[case]
    rendered = Renderer(profile(template)).chat(body)
    assert rendered == Rendered(reference(template, body))


def test_rendering_does_not_change_the_request() -> None:
    body = {"messages": [dict(USER), dict(ANSWER)], "add_generation_prompt": False, "continue_final_message": True}
    Renderer(profile(PARTS)).chat(body)
    assert body["messages"] == [USER, ANSWER]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (SMOLLM2, "string"), (PARTS, "openai"), ("{% for c in message.content %}{{ c }}{% endfor %}", "openai"),
        ("{% set content = 1 %}{% for c in content %}{% endfor %}", "openai"), ("{% broken", "string"), ("", "string"),
    ],
)  # fmt: skip
def test_the_content_format_follows_from_the_template(template: str, expected: str) -> None:
    assert content_format(template) == expected


def test_strftime_now_is_utc_by_the_given_clock() -> None:
    renderer = Renderer(profile("{{ strftime_now('%d %b %Y %H:%M') }}"), clock=lambda: 86_400.0 * 365)
    assert renderer.chat({"messages": [USER]}).text == "01 Jan 1971 00:00"


def test_the_reasoning_effort_is_a_variable() -> None:
    renderer = Renderer(profile("{{ reasoning_effort }}"))
    assert renderer.chat({"messages": [USER], "reasoning_effort": "low"}).text == "low"


def test_a_part_that_is_no_text_ends_what_can_be_predicted() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:"}}
    body = {"messages": [SYSTEM, {"role": "user", "content": [{"type": "text", "text": "look: "}, image]}, ANSWER]}
    assert Renderer(profile(PARTS)).chat(body) == Rendered("<system>Be terse.<user>look: ", complete=False)
    assert Renderer(profile(SMOLLM2)).chat(body) == Rendered(
        "<|im_start|>system\nBe terse.<|im_end|>\n<|im_start|>user\n", complete=False
    )


RENDERERS = {template: Renderer(profile(template)) for template in TEMPLATES.values()}
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "its own template": (SMOLLM2, {"messages": [USER], "chat_template": "x"}),
    "documents": (SMOLLM2, {"messages": [USER], "documents": []}),
    "a truncated prompt": (SMOLLM2, {"messages": [USER], "truncate_prompt_tokens": 5}),
    "no messages": (SMOLLM2, {}),
    "an exception of the template": ("{{ raise_exception('roles must alternate') }}", {"messages": [USER]}),
    "a type error in the template": ("{{ messages + 1 }}", {"messages": [USER]}),
    "an escape from the sandbox": ("{{ ''.__class__.__mro__ }}", {"messages": [USER]}),
    "no template": ("", {"messages": [USER]}),
    "both a prompt and a continuation": (SMOLLM2, {"messages": [USER], "continue_final_message": True}),
    "a continuation without text": (
        PARTS, {"messages": [{"role": "assistant"}], "add_generation_prompt": False, "continue_final_message": True}
    ),
    "a continuation that the template drops": (
        "x", {"messages": [ANSWER], "add_generation_prompt": False, "continue_final_message": True}
    ),
    "variables that are none": (SMOLLM2, {"messages": [USER], "chat_template_kwargs": []}),
    "variables that hide messages": (SMOLLM2, {"messages": [USER], "chat_template_kwargs": {"messages": []}}),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_rendered_has_no_prediction(case: str) -> None:
    template, body = REFUSED[case]
    with pytest.raises(RenderError):
        Renderer(profile(template)).chat(body)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
_FIELDS = ["role", "content", "name", "tool_calls", "tool_call_id", "reasoning", "type", "text", "function"]
_MESSAGE = st.dictionaries(
    st.sampled_from(_FIELDS),
    _JSON | st.sampled_from(["user", "assistant", "system", "developer", "tool"]) | st.just([{"type": "image_url"}]),
)
_OPTIONS = {
    "tools": _JSON,
    "chat_template_kwargs": _JSON,
    "continue_final_message": st.booleans(),
    "add_generation_prompt": st.booleans(),
    "reasoning_effort": _JSON,
}


@given(
    st.sampled_from(list(TEMPLATES.values())),
    st.fixed_dictionaries({"messages": st.lists(_MESSAGE, max_size=4) | _JSON}, optional=_OPTIONS),
)
@settings(max_examples=150, deadline=None)
def test_whatever_the_request_says_it_is_rendered_or_refused(template: str, body: dict[str, Any]) -> None:
    with suppress(RenderError):
        RENDERERS[template].keys(body, "/v1/chat/completions")


def test_a_template_that_does_not_compile_is_refused_at_once() -> None:
    with pytest.raises(RenderError, match="does not compile"):
        Renderer(profile("{% for %}"))


def test_message_rules_of_a_newer_agent_are_refused() -> None:
    with pytest.raises(RenderError, match="vllm-9"):
        Renderer(profile(SMOLLM2, message_rules="vllm-9"))


def test_the_sandbox_does_not_let_templates_change_what_they_are_given() -> None:
    with pytest.raises(RenderError):
        Renderer(profile("{{ messages.append(1) }}")).chat({"messages": [USER]})


def test_a_completion_is_its_text_behind_the_bos() -> None:
    renderer = Renderer(Profile(text=TextRules(alphabet="byteLevel", bos="<s>")))
    assert renderer.encode(renderer.completion("ab")) == b"<s>ab"
    body = {"prompt": "ab", "add_special_tokens": False}
    assert renderer.encode(renderer.render(body, "/v1/completions")) == b"ab"


def test_a_chat_has_its_bos_from_the_template_unless_it_asks_for_another() -> None:
    renderer = Renderer(Profile(text=TextRules(alphabet="byteLevel", bos="<s>"), chat_template="x"))
    body = {"messages": [USER]}
    assert renderer.encode(renderer.chat(body)) == b"x"
    assert renderer.encode(renderer.chat({**body, "add_special_tokens": True})) == b"<s>x"


@pytest.mark.parametrize("prompt", [None, [1, 2], ["a", "b"], 5])
def test_only_one_text_is_predicted_for_a_completion(prompt: Any) -> None:
    with pytest.raises(RenderError):
        Renderer(profile(SMOLLM2)).render({"prompt": prompt}, "/v1/completions")


def test_other_paths_have_no_prediction() -> None:
    with pytest.raises(RenderError):
        Renderer(profile(SMOLLM2)).render({"prompt": "x"}, "/v1/embeddings")


def test_without_text_rules_there_are_no_bytes_and_the_reason_is_told() -> None:
    renderer = Renderer(Profile(text=None, chat_template=SMOLLM2, reason="WordPiece model"))
    with pytest.raises(RenderError, match="WordPiece"):
        renderer.keys({"messages": [USER]}, "/v1/chat/completions")


def test_keys_are_the_chain_over_the_rendered_bytes() -> None:
    one = profile(SMOLLM2)
    renderer = Renderer(one)
    body = {"messages": [{"role": "user", "content": "word " * 300}]}
    data = renderer.chat(body).text.encode()
    expected = chain_keys(data, root_key(one.digest, "lora", "salt"))
    assert len(expected) == len(data) // CHUNK_BYTES
    assert renderer.keys(body, "/v1/chat/completions", adapter="lora", cache_salt="salt") == expected
    assert renderer.keys({"prompt": "word " * 300}, "/v1/completions") != expected
