"""Reading a request's body, and the two splices: what they change, and that they change nothing else."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from roundhouse_gateway.errors import ApiError
from roundhouse_gateway.json_spans import is_unambiguous, value_span
from roundhouse_gateway.request_body import RequestBody, ask_for_usage, read_body, set_model


def body(text: str) -> RequestBody:
    return read_body(text.encode())


def engine_bytes(text: str, engine_model: str = "m") -> str:
    return body(text).for_engine(engine_model).decode()


@pytest.mark.parametrize(
    ("raw", "code", "param"),
    [
        (b"", "invalid_json", None),
        (b"{", "invalid_json", None),
        (b'{"model":"m",}', "invalid_json", None),
        (b'{"model":NaN}', "invalid_json", None),
        (b'{"model":"m","x":"\\ud800"}', "invalid_json", None),
        (b'\xff{"model":"m"}', "invalid_json", None),
        (b"[" * 100_000, "invalid_json", None),
        (b"[]", "invalid_request", None),
        (b'"m"', "invalid_request", None),
        (b"null", "invalid_request", None),
        (b"{}", "invalid_request", "model"),
        (b'{"model":null}', "invalid_request", "model"),
        (b'{"model":7}', "invalid_request", "model"),
        (b'{"model":["m"]}', "invalid_request", "model"),
        (b'{"model":""}', "invalid_request", "model"),
        (b'{"model":"m","stream":"true"}', "invalid_request", "stream"),
        (b'{"model":"m","stream":1}', "invalid_request", "stream"),
    ],
)
def test_what_no_engine_could_serve_is_refused(raw: bytes, code: str, param: str | None) -> None:
    with pytest.raises(ApiError) as refused:
        read_body(raw)
    assert (refused.value.status, refused.value.code, refused.value.param) == (400, code, param)


@pytest.mark.parametrize(
    ("text", "streams", "needs"),
    [
        ('{"model":"m"}', False, False),
        ('{"model":"m","stream":false}', False, False),
        ('{"model":"m","stream":null}', False, False),
        ('{"model":"m","stream":true}', True, True),
        ('{"model":"m","stream":true,"stream_options":null}', True, True),
        ('{"model":"m","stream":true,"stream_options":{}}', True, True),
        ('{"model":"m","stream":true,"stream_options":{"include_usage":false}}', True, True),
        ('{"model":"m","stream":true,"stream_options":{"include_usage":true}}', True, False),
        ('{"model":"m","stream":true,"stream_options":{"include_usage":"yes"}}', True, False),
        ('{"model":"m","stream":true,"stream_options":[]}', True, False),
        ('{"model":"m","stream":true,"stream_options":"x"}', True, False),
        ('{"model":"m","stream":true,"a":1,"a":2}', True, False),
    ],
)
def test_who_gets_the_usage_splice(text: str, streams: bool, needs: bool) -> None:
    read = body(text)
    assert (read.streams, read.needs_usage_splice) == (streams, needs)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"model":"m","stream":true}', '{"stream_options":{"include_usage":true},"model":"m","stream":true}'),
        (
            ' \n{ "model" : "m", "stream":true }\n',
            ' \n{"stream_options":{"include_usage":true}, "model" : "m", "stream":true }\n',
        ),
        (
            '{"model":"m","stream":true,"stream_options": null}',
            '{"model":"m","stream":true,"stream_options": {"include_usage":true}}',
        ),
        (
            '{"stream_options":{ },"model":"m","stream":true}',
            '{"stream_options":{"include_usage":true},"model":"m","stream":true}',
        ),
        (
            '{"model":"m","stream":true,"stream_options":{"x": 1}}',
            '{"model":"m","stream":true,"stream_options":{"include_usage":true,"x": 1}}',
        ),
        (
            '{"model":"m","stream":true,"stream_options":{"x": [1], "include_usage": false , "y":0}}',
            '{"model":"m","stream":true,"stream_options":{"x": [1], "include_usage": true , "y":0}}',
        ),
        (
            '{"model":"m","stream":true,"x":"\\"stream_options\\": {}"}',
            '{"stream_options":{"include_usage":true},"model":"m","stream":true,"x":"\\"stream_options\\": {}"}',
        ),
    ],
)  # fmt: skip
def test_usage_splice_changes_one_place(text: str, expected: str) -> None:
    assert engine_bytes(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"model":"alias","x":1}', '{"model":"engine/one","x":1}'),
        ('{"x":{"model":"alias"}, "model" :\t"alias"}', '{"x":{"model":"alias"}, "model" :\t"engine/one"}'),
        ('{"mod\\u0065l":"alias"}', '{"mod\\u0065l":"engine/one"}'),
        ('{"a":"\\\\","model":"alias","b":"model"}', '{"a":"\\\\","model":"engine/one","b":"model"}'),
        ('{"a":"\\"model\\":\\"alias\\"","model":"alias"}', '{"a":"\\"model\\":\\"alias\\"","model":"engine/one"}'),
        ('{"a":[[],{},"]",{"b":"}"}],"model":"alias"}', '{"a":[[],{},"]",{"b":"}"}],"model":"engine/one"}'),
        ('{"a":-1.5e3,"b":true,"c":null,"model":"alias"}', '{"a":-1.5e3,"b":true,"c":null,"model":"engine/one"}'),
    ],
)
def test_model_splice_changes_one_place(text: str, expected: str) -> None:
    assert engine_bytes(text, "engine/one") == expected


@pytest.mark.parametrize(
    "text",
    [
        '{"model":"a","model":"b","stream":true}',
        '{"model":"a","mod\\u0065l":"b","stream":true}',
        '{"model":"a","stream":true,"messages":[{"role":"user","role":"system"}]}',
    ],
)
def test_a_body_with_a_key_twice_is_not_touched(text: str) -> None:
    assert engine_bytes(text, "engine/one") == text


@pytest.mark.parametrize("text", ['{"model":"m"}', '{ "model":"m","temperature":0.70, "n":1E0,"unknown":[1,2] }'])
def test_without_need_the_bytes_stay_as_they_are(text: str) -> None:
    assert engine_bytes(text, "m") == text
    assert engine_bytes(text, "") == text


leaves = [
    st.none(),
    st.booleans(),
    st.integers(-(2**53), 2**53),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=12),
]
json_values = st.recursive(
    st.one_of(leaves),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
own_keys = ["model", "stream", "stream_options", "messages", "a", "\\", '"', "é", "{", "include_usage"]
keys = st.sampled_from(own_keys) | st.text(max_size=6)
layouts = st.sampled_from(
    [
        {"separators": (",", ":")},
        {"separators": (", ", ": ")},
        {"indent": 1},
        {"ensure_ascii": False},
        {"indent": "\t", "ensure_ascii": False},
    ]
)


def encodable(value: object) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


bodies = st.dictionaries(keys, json_values, max_size=6).filter(encodable)


@given(bodies, layouts, st.text(min_size=1, max_size=10).filter(encodable))
def test_any_body_keeps_its_meaning_but_for_the_splices(
    fields: dict[str, Any], layout: dict[str, Any], name: str
) -> None:
    fields = {**fields, "model": "alias", "stream": True}
    raw = json.dumps(fields, **layout).encode()
    read = read_body(raw)
    assert read.unambiguous
    wanted = {**fields, "model": name}
    options = fields.get("stream_options")
    if options is None or (isinstance(options, dict) and options.get("include_usage") in (None, False)):
        wanted["stream_options"] = {**(options or {}), "include_usage": True}
        assert read.needs_usage_splice
    assert json.loads(read.for_engine(name)) == wanted


@given(bodies, layouts)
def test_span_of_every_member_is_its_value(fields: dict[str, Any], layout: dict[str, Any]) -> None:
    raw = json.dumps(fields, **layout).encode()
    for key, value in fields.items():
        span = value_span(raw, key)
        assert span is not None
        assert json.loads(raw[span[0] : span[1]]) == value
    assert value_span(raw, "no such key") is None


@given(bodies, layouts, st.data())
def test_a_doubled_key_is_always_found(fields: dict[str, Any], layout: dict[str, Any], data: st.DataObject) -> None:
    fields = {**fields, "model": "m"}
    key = data.draw(st.sampled_from(sorted(fields)))
    raw = json.dumps(fields, **layout).encode()
    doubled = raw.rstrip()[:-1] + b"," + json.dumps(key).encode() + b":0}"
    assert is_unambiguous(raw, json.loads(raw))
    assert not is_unambiguous(doubled, json.loads(doubled))


def test_splices_of_an_object_without_the_key_leave_it() -> None:
    assert set_model(b'{"a":1}', "m") == b'{"a":1}'
    assert ask_for_usage(b'{"a":1}', None) == b'{"stream_options":{"include_usage":true},"a":1}'


def test_a_body_too_deep_to_check_is_not_touched() -> None:
    raw = b'{"model": "m","x":' + b"[" * 5000 + b"]" * 5000 + b"}"
    assert not is_unambiguous(raw, {})
