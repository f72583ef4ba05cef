"""What the router reads of a prompt: text, size, keys, affinity; and that nothing a client sends can make it fail."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from roundhouse_gateway.prompt import CHAT, HISTORY_ROOT, Prompt, read_prompt
from roundhouse_gateway.tokens import TokenRatios
from roundhouse_kv.keys import chain_keys, root_key
from roundhouse_kv.render import Renderer
from roundhouse_kv.token_table import TokenTable

from tests.unit.roundhouse_gateway.fakes import PROFILE

COMPLETIONS = "/v1/completions"
DIGEST = PROFILE.digest
RENDERER = Renderer(PROFILE)


def read(fields: dict[str, Any], path: str = CHAT, renderer: Renderer | None = RENDERER) -> Prompt:
    return read_prompt(fields, path, renderer, DIGEST if renderer is not None else "")


def turn(role: str, content: object) -> dict[str, object]:
    return {"role": role, "content": content}


def test_keys_are_those_of_the_rendered_text() -> None:
    prompt = read({"messages": [turn("user", "long text " * 100)]})
    text = "<|im_start|>user\n" + "long text " * 100 + "<|im_end|>\n<|im_start|>assistant\n"
    assert prompt.data == text.encode()
    assert prompt.keys == chain_keys(text.encode(), root_key(DIGEST))
    assert prompt.size.bytes == len(text)


def test_salt_enters_the_root() -> None:
    fields = {"messages": [turn("user", "x" * 600)]}
    assert read(fields).keys != read({**fields, "cache_salt": "tenant"}).keys
    assert (
        read({**fields, "cache_salt": "tenant"}).keys[0]
        == chain_keys(read(fields).data, root_key(DIGEST, "", "tenant"))[0]
    )


def test_without_a_profile_prompts_can_still_be_compared() -> None:
    one = read({"messages": [turn("user", "x" * 600)]}, renderer=None)
    two = read({"messages": [turn("user", "x" * 600 + "y")]}, renderer=None)
    assert one.keys[:2] == two.keys[:2]
    assert one.keys == chain_keys(one.data, root_key(HISTORY_ROOT))


@pytest.mark.parametrize(
    "extra", [{"chat_template": "{{ 1 }}"}, {"truncate_prompt_tokens": 5}, {"documents": [{}]}, {"tools": "x"}]
)
def test_what_cannot_be_rendered_has_no_keys_but_a_size(extra: dict[str, object]) -> None:
    prompt = read({"messages": [turn("user", "x" * 600)], **extra})
    assert prompt.keys == []
    assert prompt.size.bytes >= 600


def test_completion_prompts() -> None:
    assert read({"prompt": "p" * 300}, COMPLETIONS).keys == chain_keys(b"p" * 300, root_key(DIGEST))
    assert read({"prompt": ["p" * 300]}, COMPLETIONS).keys == chain_keys(b"p" * 300, root_key(DIGEST))
    several = read({"prompt": ["ab", "cde"]}, COMPLETIONS)
    assert (several.size.bytes, several.keys, several.exact_tokens) == (5, [], None)


@pytest.mark.parametrize(("prompt", "tokens"), [([1, 2, 3], 3), ([[1, 2], [3]], 3), ([[1, 2, 3]], 3)])
def test_token_ids_are_counted(prompt: object, tokens: int) -> None:
    read_ids = read({"prompt": prompt}, COMPLETIONS)
    read_ids.estimate(TokenRatios())
    assert (read_ids.exact_tokens, read_ids.tokens, read_ids.keys) == (tokens, tokens, [])


def test_affinity_is_the_conversation_up_to_the_last_answer() -> None:
    history = [turn("user", "q1"), turn("assistant", "answer one")]
    first = read({"messages": [turn("user", "q1")]})
    second = read({"messages": [*history, turn("user", "q2")]})
    other = read({"messages": [*history, turn("user", "something else")]})
    longer = read({"messages": [*history, turn("user", "q2"), turn("assistant", "two"), turn("user", "q3")]})
    assert first.affinity() is None
    assert second.affinity() == other.affinity() is not None
    assert longer.affinity() != second.affinity()


def test_parts_that_are_no_text_are_counted_not_measured() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
    prompt = read({"messages": [turn("user", [{"type": "text", "text": "look"}, image, image])]}, renderer=None)
    assert prompt.size.parts == 2
    assert prompt.size.bytes < 100


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "text", "type", "tool_calls", "name"]), inner, max_size=4)
    ),
    max_leaves=15,
)


@given(
    st.dictionaries(
        st.sampled_from(
            ["messages", "prompt", "tools", "cache_salt", "chat_template_kwargs", "n", "add_generation_prompt"]
        ),
        anything,
    ),
    st.sampled_from([CHAT, COMPLETIONS]),
    st.sampled_from([RENDERER, None]),
)
def test_no_body_makes_it_fail(fields: dict[str, Any], path: str, renderer: Renderer | None) -> None:
    prompt = read(fields, path, renderer)
    prompt.estimate(TokenRatios())
    assert prompt.tokens >= 1
    assert prompt.affinity() is None or isinstance(prompt.affinity(), int)


def test_token_ids_have_the_keys_of_what_they_spell() -> None:
    words = [f"word{number} ".encode() for number in range(200)]
    tables = {"d": TokenTable([*words, None])}
    ids, text = list(range(100)), b"".join(words[:100])
    for prompt in (ids, [ids]):
        found = read_prompt({"prompt": prompt}, COMPLETIONS, RENDERER, "d", tables)
        assert found.keys == chain_keys(text, root_key("d", "", ""))
        found.estimate(TokenRatios())
        assert (found.exact_tokens, found.tokens) == (100, 100)
        assert found.cached_tokens(256, 0) == pytest.approx((256 + 128) * 100 / len(text), abs=1)
    ended = read_prompt({"prompt": [*ids[:60], 200, *ids]}, COMPLETIONS, RENDERER, "d", tables)
    assert ended.keys == found.keys[: len(ended.keys)]
    assert len(ended.keys) == len(b"".join(words[:60])) // 256
    assert ended.exact_tokens == 161


@pytest.mark.parametrize("prompt", [[1, 2, True], [[1, 2], [3]], [1, "a"], [], [[]]])
def test_what_is_no_single_prompt_of_token_ids_has_no_keys(prompt: list[object]) -> None:
    tables = {"d": TokenTable([b"x" * 300] * 4)}
    assert read_prompt({"prompt": prompt}, COMPLETIONS, RENDERER, "d", tables).keys == []
