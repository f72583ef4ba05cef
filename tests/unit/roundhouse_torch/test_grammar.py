"""Constrained answers: every random answer of a tiny model matches, with and without guesses."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from roundhouse_torch.engine.entrance import Entrance
from roundhouse_torch.engine.grammar import Grammars
from roundhouse_torch.engine.sampler import Row, sample
from roundhouse_torch.messages.command import Add, Sampling
from roundhouse_torch.scheduler.sequence import Constraint, Sequence
from roundhouse_torch.server.requests import CompletionRequest, parse
from roundhouse_torch.server.structure import Structure, structure_of

from tests.support.tiny_models import make_tokenizer

SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["cat", "dog"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 30},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2},
    },
    "required": ["kind", "age", "tags"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
REGEX = r"[A-Z][a-z]{1,4}-\d{2}"
GBNF = 'root ::= item ("," item)?\nitem ::= "a" | "b" [0-9]'
END, VOCABULARY = 2, 512
TOKENIZER = make_tokenizer(VOCABULARY)


@pytest.fixture(scope="module")
def grammars(tmp_path_factory: pytest.TempPathFactory) -> Grammars:
    path: Path = tmp_path_factory.mktemp("model") / "tokenizer.json"
    TOKENIZER.save(str(path))
    return Grammars(path, VOCABULARY, (END,))


def structure(**fields: Any) -> Structure:
    found = structure_of(parse({"prompt": "x", **fields}, CompletionRequest))
    assert found is not None
    return found


def constraint(grammars: Grammars, asked: Structure, thinking: str = "") -> Constraint:
    return grammars.compile(asked.after(thinking)).result(30)


def write(matching: Constraint, seed: int, drafts: bool = False, longest: int = 400) -> str:
    """Random tokens, as the mask allows. Guesses are the last answer's tokens, cut where they cannot match."""
    sampling = Sampling(seed=seed, eos_ids=frozenset((END,)))
    sequence = Sequence(0, [0], sampling, max_length=longest, root=b"")
    sequence.constraint = matching
    guesses = torch.Generator().manual_seed(seed)
    while True:
        draft: list[int] = torch.randint(3, VOCABULARY, (6,), generator=guesses).tolist() if drafts else []
        draft = draft[: matching.validate_tokens(draft)]
        rows = [Row(sequence, tuple(draft[:ahead])) for ahead in range(len(draft) + 1)]
        logits = torch.randn(1, VOCABULARY, generator=torch.Generator().manual_seed(seed)).repeat(len(rows), 1)
        tokens, _ = sample(logits, rows)
        for token in tokens[0]:
            sequence.tokens.append(token)
            if sequence.finish() is not None:
                assert len(sequence.tokens) < longest
                return str(TOKENIZER.decode([token for token in sequence.tokens[1:] if token != END]))


@pytest.mark.parametrize("drafts", [False, True])
def test_json_answers_follow_their_schema(grammars: Grammars, drafts: bool) -> None:
    for seed in range(12):
        text = write(constraint(grammars, structure(guided_json=SCHEMA)), seed, drafts)
        jsonschema.validate(json.loads(text), SCHEMA)


@pytest.mark.parametrize("seed", range(8))
def test_regexes_choices_and_grammars_are_matched(grammars: Grammars, seed: int) -> None:
    assert re.fullmatch(REGEX, write(constraint(grammars, structure(guided_regex=REGEX)), seed))
    choice = structure(structured_outputs={"choice": ['say "a"', "b\n"]})
    assert write(constraint(grammars, choice), seed) in ('say "a"', "b\n")
    assert re.fullmatch(r"(a|b[0-9])(,(a|b[0-9]))?", write(constraint(grammars, structure(guided_grammar=GBNF)), seed))
    lark = structure(structured_outputs={"grammar": 'start: "x" NUMBER\nNUMBER: /[0-9]{3}/'})
    assert re.fullmatch(r"x[0-9]{3}", write(constraint(grammars, lark), seed))


def test_any_json_object(grammars: Grammars) -> None:
    matching = constraint(grammars, structure(response_format={"type": "json_object"}))
    assert matching.validate_tokens(TOKENIZER.encode('{"a": [1, null]}').ids) > 0
    assert matching.validate_tokens(TOKENIZER.encode("[1]").ids) == 0


def test_guesses_change_nothing(grammars: Grammars) -> None:
    for seed in range(8):
        asked = structure(guided_json=SCHEMA)
        plain, guessed = (write(constraint(grammars, asked), seed, drafts) for drafts in (False, True))
        assert plain == guessed


@pytest.mark.parametrize(
    ("thinking", "text", "matches"),
    [
        ("begun", "so < it is</think>\n\nAbc-12", True),
        ("begun", "Abc-12", False),
        ("optional", "<think>\nso\n</think>Abc-12", True),
        ("optional", "Abc-12", True),
        ("optional", "so</think>Abc-12", False),
        ("", "Abc-12", True),
    ],
)
def test_a_thought_may_come_before_the_answer(grammars: Grammars, thinking: str, text: str, matches: bool) -> None:
    matching = constraint(grammars, structure(guided_regex=REGEX), thinking)
    accepted = all(matching.consume_token(token) for token in TOKENIZER.encode(text).ids)
    assert (accepted and matching.is_stopped()) == matches


@pytest.mark.parametrize(
    "fields",
    [
        {"guided_regex": "[a-"},
        {"guided_json": {"type": "nothing"}},
        {"guided_json": {"$ref": "#/nowhere"}},
        {"guided_grammar": "start: unknown_rule"},
    ],
)
def test_what_cannot_be_compiled_is_refused_with_the_reason(grammars: Grammars, fields: dict[str, Any]) -> None:
    entrance = Entrance("model", grammars)
    entrance.add(Add(1, [5], 9, Sampling(), grammar=structure(**fields).after("")))
    entrance.add(Add(2, [5], 9, Sampling()))
    admitted, refused = [], []
    for _ in range(100_000):
        some, others = entrance.admit()
        admitted += some
        refused += others
        if not len(entrance):
            break
    assert [sequence.id for sequence in admitted] == [2]
    assert [output.id for output in refused] == [1]
    assert refused[0].error is not None
    assert "grammar" in refused[0].error


def test_requests_without_a_grammar_pass_those_that_wait_for_theirs(grammars: Grammars) -> None:
    entrance = Entrance("model", grammars)
    entrance.add(Add(1, [5], 9, Sampling(), grammar=structure(guided_regex="[0-9a-f]{3,900}").after("")))
    entrance.add(Add(2, [5], 9, Sampling()))
    first, _ = entrance.admit()
    assert 2 in [sequence.id for sequence in first]
    assert entrance.abort(1) == (1 not in [sequence.id for sequence in first])
