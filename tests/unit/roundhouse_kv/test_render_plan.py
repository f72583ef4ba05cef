"""Plans say what jinja says, whatever the contents are, and templates that look into contents get none."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roundhouse_kv.errors import RenderError
from roundhouse_kv.records import Profile, TextRules
from roundhouse_kv.render import Rendered, Renderer, content_format

from tests.unit.roundhouse_kv.test_render import TEMPLATES, VARIABLES


def each(inner: str) -> str:
    return "{% for m in messages %}[{{ m.role }}]" + inner + "{% endfor %}"


PLANNED = {
    **TEMPLATES,
    "llama3": (
        "{% set loop_messages = messages %}{% for message in loop_messages %}"
        "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim "
        "+ '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
    ),
    "mistral": (
        "{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}"
        "{% set turns = messages[1:] %}{% else %}{% set turns = messages %}{% endif %}{{ bos_token }}"
        "{% for m in turns %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}{% if m.role == 'user' %}"
        "{% if loop.last and system is defined %}{{ '[INST] ' + system + '\n\n' + m.content + ' [/INST]' }}"
        "{% else %}{{ '[INST] ' ~ m.content ~ ' [/INST]' }}{% endif %}{% else %}{{ m.content + eos_token }}{% endif %}"
        "{% endfor %}"
    ),
    "namespace": (
        "{% set ns = namespace(last=messages[-1].content) %}{% for m in messages if m.role in ['user', 'assistant'] %}"
        "{% if m.content is string and m.content %}{{ m.content }}|{% endif %}{% endfor %}{{ ns.last | default('') }}"
    ),
    "dated": each("{{ strftime_now('%Y-%m-%d') }}{{ m.content }}"),
    "chosen": "{% for m in messages | selectattr('role', 'equalto', 'user') %}{{ m.content.strip() }}{% endfor %}",
}
REFUSED = {
    "compared": each("{% if m.content == 'a' %}!{% endif %}"),
    "contains": each("{% if 'a' in m.content %}!{% endif %}"),
    "contained": each("{% if m.content in 'abcabc' %}!{% endif %}"),
    "contained in a list": each("{% if m.content in ['a', 'b'] %}!{% endif %}"),
    "contained in a dict": each("{% if m.content in {'a': 1} %}!{% endif %}"),
    "looked up": each("{{ {'a': 'x'}.get(m.content) }}"),
    "split": each("{{ m.content.split('a')[-1] }}"),
    "starts": each("{% if m.content.startswith('a') %}!{% endif %}"),
    "sliced": each("{{ m.content[1:] }}"),
    "indexed": each("{{ m.content[0] }}"),
    "measured": each("{{ m.content | length }}"),
    "walked": each("{% for c in m.content %}{{ c }}.{% endfor %}"),
    "upper": each("{{ m.content | upper }}"),
    "json": each("{{ m.content | tojson }}"),
    "json of a message": each("{{ m | tojson }}"),
    "printed message": each("{{ m }}"),
    "number": each("{{ m.content | int }}"),
    "replaced": each("{{ m.content | replace('a', 'b') }}"),
    "escaped": each("{{ m.content | e }}"),
    "marked safe": each("{{ (m.content | safe) == 'a' }}"),
    "trimmed of something": each("{{ m.content | trim('a') }}"),
    "trimmed in company": each("{{ (m.content + 'x') | trim }}"),
    "formatted": each("{{ '%s' % m.content }}"),
    "formatted in a tuple": each("{{ ('%s' % (m.content,)) == 'a' }}"),
    "formatted by a method": each("{{ '{}'.format(m.content) }}"),
    "joined by a filter": "{{ (messages | map(attribute='content') | join) == 'a' }}",
    "joined by a method": each("{{ ''.join([m.content, 'x']) == 'ax' }}"),
    "tilde then compared": each("{% set x = 'a' ~ m.content %}{% if x == 'aa' %}!{% endif %}"),
    "sum then compared": each("{% set x = 'a' + m.content %}{% if x == 'aa' %}!{% endif %}"),
    "captured": each("{% set x %}{{ m.content }}{% endset %}{% if x == 'a' %}!{% endif %}"),
    "macro": "{% macro f(x) %}{{ x }}{% endmacro %}" + each("{{ f(m.content) == 'a' }}"),
    "repeated": each("{{ m.content * 2 }}"),
    "ordered": each("{{ m.content < 'b' }}"),
    "sorted": "{% for m in messages | sort(attribute='content') %}{{ m.content }}{% endfor %}",
    "tested": each("{{ m.content is upper }}"),
    "changed": each("{% if loop.changed(m.content) %}!{% endif %}"),
    "compared with another": "{{ messages[0].content == messages[-1].content }}",
    "random": each("{{ [1, 2] | random }}"),
}
CHATS = (("user",), ("system", "user"), ("user", "assistant", "user"), ("system", "user", "assistant", "user"))


def renderer(template: str, **options: Any) -> Renderer:
    kind = content_format(template)
    profile = Profile(
        text=TextRules(alphabet="byteLevel"), chat_template=template, variables=VARIABLES, content_format=kind
    )
    return Renderer(profile, **options)


def chat(of: Renderer, messages: list[dict[str, str]], **fields: Any) -> Rendered | str:
    try:
        return of.chat({"messages": messages, **fields})
    except RenderError as error:
        return str(error)


def by_jinja(of: Renderer, messages: list[dict[str, str]]) -> Rendered | str:
    """A field that could matter keeps plans out."""
    return chat(of, messages, add_special_tokens=False)


RENDERERS = {name: renderer(template) for name, template in (PLANNED | REFUSED).items()}


@pytest.mark.parametrize("name", PLANNED)
@pytest.mark.parametrize("roles", CHATS)
def test_templates_that_put_contents_down_as_they_are_have_a_plan(name: str, roles: tuple[str, ...]) -> None:
    messages = [{"role": role, "content": f" say {n} "} for n, role in enumerate(roles)]
    planned = renderer(PLANNED[name])._plans.render({"messages": messages})
    assert planned is not None
    assert Rendered(planned) == by_jinja(RENDERERS[name], messages)


@pytest.mark.parametrize("name", REFUSED)
def test_templates_that_look_into_contents_have_none(name: str) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert RENDERERS[name]._plans.render({"messages": messages}) is None


CONTENTS = st.sampled_from(
    ["a", "A", "b", "5", " ", "", "aXa", "{{ x }}", "\ue0b70\ue0b7", "x-anthropic-billing-header:1"]
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "assistant", "system", "developer"]),
            "content": CONTENTS | st.text(max_size=20),
        }
    ),
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize("name", [*PLANNED, *REFUSED])
@settings(max_examples=20)
@given(chats=st.lists(MESSAGES, min_size=1, max_size=3))
def test_a_chat_is_what_jinja_makes_of_it(name: str, chats: list[list[dict[str, str]]]) -> None:
    if name == "random":
        return
    for messages in chats:
        assert chat(RENDERERS[name], messages) == by_jinja(RENDERERS[name], messages)


def test_a_plan_is_made_again_when_the_time_it_shows_has_changed() -> None:
    now = [0.0]
    dated = renderer(PLANNED["dated"], clock=lambda: now[0])
    messages = [{"role": "user", "content": "hi"}]
    assert chat(dated, messages) == Rendered("[user]1970-01-01hi")
    now[0] = 86400.0
    assert chat(dated, messages) == Rendered("[user]1970-01-02hi")


@pytest.mark.parametrize(
    "change",
    [{"tools": []}, {"add_generation_prompt": False}, {"chat_template_kwargs": {"bos_token": "x"}}, {"documents": []}],
)
def test_a_request_that_changes_the_rendering_has_no_plan(change: dict[str, Any]) -> None:
    assert RENDERERS["smollm2"]._plans.render({"messages": [{"role": "user", "content": "a"}], **change}) is None


def test_messages_with_more_than_text_have_no_plan() -> None:
    for odd in ({"role": "user", "content": ["a"]}, {"role": ["user"], "content": "a"}, {"role": "user"}, "a"):
        assert RENDERERS["smollm2"]._plans.render({"messages": [odd]}) is None
