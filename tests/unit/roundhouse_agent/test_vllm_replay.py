"""Recorded vLLM runs through decoder, block map and canonical check, against what vLLM said it had cached.

An error is counted in whole units: false positive = at least one whole block inside the predicted bytes was not
reported as cached; false negative = at least one whole chunk inside the reported bytes was not predicted.
"""

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from roundhouse_agent.blocks import BlockMap
from roundhouse_agent.canonical import CanonicalCheck
from roundhouse_agent.profile import describe, read_model
from roundhouse_engines.probe import CacheBatch
from roundhouse_engines.vllm.frames import FrameDecoder
from roundhouse_kv.keys import CHUNK_BYTES, chain_keys, root_key
from roundhouse_kv.records import Profile
from roundhouse_kv.render import Renderer
from roundhouse_kv.token_bytes import TokenBytes
from tokenizers import Tokenizer

DATA = Path(__file__).parents[2] / "data" / "vllm_prefix"
Row = dict[str, Any]


@dataclass(frozen=True)
class Engine:
    table: TokenBytes
    tokenizer: Tokenizer
    profile: Profile


@pytest.fixture(scope="module")
def engine() -> Engine:
    tokenizer_json = gzip.decompress((DATA / "tokenizer.json.gz").read_bytes())
    files = {
        "tokenizer.json": tokenizer_json,
        "chat_template.jinja": (DATA / "template.jinja").read_bytes(),
        "tokenizer_config.json": b'{"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}',
    }
    model = read_model(files, 0)
    assert model.table is not None
    return Engine(model.table, Tokenizer.from_str(tokenizer_json.decode()), describe(model, {}))


@dataclass
class Errors:
    answered: int
    false_positives: list[str]
    false_negatives: list[str]


def replay(engine: Engine, log: str, block_size: int, *, checked: bool = True) -> tuple[Errors, BlockMap]:
    rows = [json.loads(line) for line in gzip.decompress((DATA / log).read_bytes()).splitlines()]
    frames = {row["seq"]: bytes.fromhex(row["p"]) for row in rows if row["k"] == "ev"}
    decoder, digest = FrameDecoder(), engine.profile.digest
    canonical = CanonicalCheck(engine.tokenizer, engine.table) if checked else None
    blocks = BlockMap(engine.table, lambda adapter, salt: root_key(digest, adapter, salt), canonical)
    held: set[int] = set()
    errors, seq = Errors(0, [], []), 0
    for request in _in_order_of_sending(rows):
        while seq <= request["seen"]:
            blocks.apply(CacheBatch(seq, decoder.decode(frames[seq])))
            seq += 1
        _mirror(held, blocks)
        if request["ct"] is not None:
            _judge(engine, request, block_size, held, errors)
    return errors, blocks


def _in_order_of_sending(rows: list[Row]) -> Iterator[Row]:
    yield from sorted((row for row in rows if row["k"] == "req"), key=lambda row: (row["seen"], row["t"]))


def _mirror(held: set[int], blocks: BlockMap) -> None:
    change = blocks.take()
    if change.cleared:
        held.clear()
    assert not held.intersection(change.added)
    assert held.issuperset(change.removed)
    held.update(change.added)
    held.difference_update(change.removed)
    assert held == set(blocks.keys())


def _judge(engine: Engine, request: Row, block_size: int, held: set[int], errors: Errors) -> None:
    errors.answered += 1
    body = request["body"]
    keys = chain_keys(_prompt(engine, request), root_key(engine.profile.digest, "", body.get("cache_salt") or ""))
    predicted = next((i for i, key in enumerate(keys) if key not in held), len(keys)) * CHUNK_BYTES
    ends, ids = [0], request["prompt_ids"] or []
    for start in range(0, len(ids) - block_size + 1, block_size):
        ends.append(ends[-1] + len(engine.table.bytes(ids[start : start + block_size])))
    cached = request["ct"] // block_size
    whole = sum(end <= predicted for end in ends) - 1 if ids else 0
    if min(whole, (request["pt"] - 1) // block_size) > cached:
        errors.false_positives.append(request["cause"])
    if cached < len(ends) and ends[cached] - predicted >= CHUNK_BYTES:
        errors.false_negatives.append(request["cause"])


def _prompt(engine: Engine, request: Row) -> bytes:
    body = request["body"]
    if isinstance(body.get("prompt"), list):
        return engine.table.bytes(body["prompt"])
    renderer = Renderer(engine.profile, clock=lambda: float(request["t"]))
    if body.get("continue_final_message"):
        body = {**body, "add_generation_prompt": False}
    return renderer.encode(renderer.render(body, request["path"]))


def test_main_run_has_one_false_positive_from_a_late_clear_and_no_false_negative(engine: Engine) -> None:
    errors, blocks = replay(engine, "main_b32.jsonl.gz", 32)
    assert errors == Errors(213, ["after-reset"], [])
    assert blocks.counts.unknown_parents == blocks.counts.unknown_removals == 0


def test_without_the_canonical_check_non_canonical_prompts_are_mispredicted(engine: Engine) -> None:
    errors, _ = replay(engine, "main_b32.jsonl.gz", 32, checked=False)
    assert len(errors.false_positives) == 8
    assert errors.false_negatives == []


def test_concurrent_run_misses_only_what_was_in_flight(engine: Engine) -> None:
    errors, _ = replay(engine, "b64.jsonl.gz", 64)
    assert errors == Errors(131, [], ["conc"] * 6)
