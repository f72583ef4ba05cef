"""The bundled engine and vLLM side by side: the same service on either, and every way to lose track of their caches.

The faults are brought about in the real Valkey, under real agents and two real gateways. After each one both gateways
must hold exactly what the agent says its engine has, and find a conversation's prefix again; no request ever fails.
"""

import json
import os
import signal
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.integration.skeleton.local_run import local_run, processes_of, wait_for
from tests.integration.two_engines.stack import CHUNK_BYTES, MANIFEST, TORCH, VLLM, Stack, connect

pytestmark = [
    pytest.mark.integration, pytest.mark.slow, pytest.mark.xdist_group("two_engines"), pytest.mark.timeout(600),
]  # fmt: skip

READY_WITHIN_S = 400.0
SYSTEM = "You are the night clerk of a railway roundhouse and answer in one short sentence. " * 16
BOTH = (TORCH, VLLM)
_numbers = count()


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with tempfile.TemporaryDirectory(prefix="rh") as home:
        with local_run(Path(home), MANIFEST, ready_within_s=READY_WITHIN_S) as run:
            yield connect(run)
        wait_for("the end of every process", lambda: not processes_of(run.home), 30)


def converse(stack: Stack, service: str) -> None:
    """Two turns through two gateways: the second's prefix is known there, and is really cached."""
    messages: list[Any] = [
        {"role": "system", "content": f"{next(_numbers)} {SYSTEM}"},
        {"role": "user", "content": "Who are you?"},
    ]
    first = stack.ask(service, messages, gateway=0)
    stack.wait_agreed(service)
    messages += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "What do you do at night?"}]
    second = stack.ask(service, messages, gateway=1)
    sent = len(SYSTEM)
    assert first.cached_tokens < first.prompt_tokens / 4
    assert second.cached_tokens > first.prompt_tokens * 0.8
    assert second.matched_bytes > sent - CHUNK_BYTES


@pytest.mark.parametrize("service", BOTH)
def test_a_second_turn_through_the_other_gateway_finds_its_prefix(stack: Stack, service: str) -> None:
    converse(stack, service)
    assert all(view["waiting"] is not None and view["kvUsed"] is not None for view in stack.views(service))


@pytest.mark.parametrize("service", BOTH)
def test_a_prompt_of_token_ids_is_known_by_what_it_spells(stack: Stack, service: str) -> None:
    text = f"{next(_numbers)} {SYSTEM}"
    ids = stack.tokenize(service, text)
    first = stack.complete(service, ids, gateway=0)
    stack.wait_agreed(service)
    again = stack.complete(service, ids, gateway=1)
    assert (first.cached_tokens, first.matched_bytes) == (0, 0)
    assert again.cached_tokens > len(ids) * 0.8
    assert again.matched_bytes > len(text) - 2 * CHUNK_BYTES


@pytest.mark.parametrize(("service", "engine"), [(TORCH, "roundhouse"), (VLLM, "vllm")])
def test_the_replica_tells_what_it_really_runs(stack: Stack, service: str, engine: str) -> None:
    replica = next(each for each in stack.run.items("erep") if each["spec"]["service"] == service)
    running = replica["status"]["stack"]
    assert engine in running["engine"] or running["engine"] == "torch"
    assert running["prefixCaching"] == "on"
    assert int(running["blockSize"]) == {TORCH: 16, VLLM: 32}[service]


def test_vllm_streams_whole_events_with_its_load_in_the_lease(stack: Stack) -> None:
    stream = Stream(stack, VLLM, tokens=40)
    stream.start()
    wait_for("its first event", lambda: stream.events, 60)
    wait_for("a running request in the lease", lambda: (stack.lease(VLLM).running or 0) > 0, 20)
    stream.join(60)
    assert stream.finish == "length"
    assert stream.done
    wait_for("no running request in the lease", lambda: stack.lease(VLLM).running == 0, 20)


def test_a_gap_in_the_log_is_closed(stack: Stack) -> None:
    with stack.deaf_gateways():
        for service in BOTH:
            for words in ("lost ", "kept "):
                _one_entry(stack, service, words, lose=words == "lost ")
    for service in BOTH:
        converse(stack, service)


def test_a_loss_behind_which_nothing_comes_is_found(stack: Stack) -> None:
    with stack.deaf_gateways():
        for service in BOTH:
            _one_entry(stack, service, "silence ", lose=True)
    for service in BOTH:
        stack.wait_agreed(service)
        converse(stack, service)


def test_a_log_trimmed_past_the_gateways_is_made_good(stack: Stack) -> None:
    with stack.deaf_gateways():
        for service in BOTH:
            for words in ("one ", "two ", "three "):
                _one_entry(stack, service, words, lose=False)
            stack.redis.xtrim(stack.keys(service).kv_log, maxlen=1, approximate=False)
    for service in BOTH:
        stack.wait_agreed(service)
        converse(stack, service)


def test_entries_that_come_twice_change_nothing(stack: Stack) -> None:
    for service in BOTH:
        known = stack.wait_agreed(service)
        for _, fields in stack.log(service)[-6:]:
            stack.redis.xadd(stack.keys(service).kv_log, fields)  # type: ignore[arg-type]
        assert stack.wait_agreed(service).key_xor == known.key_xor
        converse(stack, service)


def test_an_emptied_valkey_is_filled_again(stack: Stack) -> None:
    stack.redis.flushall()
    for service in BOTH:
        converse(stack, service)
        assert stack.log(service)


def test_a_log_that_begins_again_at_smaller_ids_is_followed(stack: Stack) -> None:
    """As after a failover to a server whose clock is behind: the gateways have read ids of the next year."""
    for service in BOTH:
        last = stack.log(service)[-1]
        ahead = f"{int(last[0].split(b'-')[0]) + 31_536_000_000}-0"
        stack.redis.xadd(stack.keys(service).kv_log, last[1], id=ahead)  # type: ignore[arg-type]
        converse(stack, service)
    stack.redis.flushall()
    for service in BOTH:
        converse(stack, service)
        assert stack.log(service)[-1][0].split(b"-")[0] < ahead.encode()


@pytest.mark.parametrize("service", BOTH)
def test_a_killed_agent_comes_back_and_knows_what_its_engine_holds(stack: Stack, service: str) -> None:
    before = stack.wait_agreed(service)
    os.kill(stack.process(service, "roundhouse_agent serve"), signal.SIGKILL)
    after = stack.wait_agreed(service, source_not=before.source)
    assert after.epoch == before.epoch
    assert (after.key_count, after.key_xor) == (before.key_count, before.key_xor)
    converse(stack, service)


def test_entries_of_a_dead_engine_that_come_late_are_ignored(stack: Stack) -> None:
    before = stack.wait_agreed(TORCH)
    late = stack.log(TORCH)[-4:]
    os.kill(stack.process(TORCH, "roundhouse_torch"), signal.SIGKILL)
    stack.wait_agreed(TORCH, epoch_not=before.epoch)
    for _, fields in late:
        stack.redis.xadd(stack.keys(TORCH).kv_log, fields)  # type: ignore[arg-type]
    converse(stack, TORCH)
    assert stack.wait_agreed(TORCH).epoch > before.epoch


def test_vllm_finishes_what_it_streams_before_it_stops(stack: Stack) -> None:
    """On SIGTERM by its own shutdown timeout, which the launch line sets to the drain's."""
    before = stack.wait_agreed(VLLM)
    streams = [Stream(stack, VLLM, tokens=60, gateway=gateway) for gateway in (0, 1)]
    for stream in streams:
        stream.start()
    wait_for("first events", lambda: all(stream.events for stream in streams), 60)
    os.kill(stack.process(VLLM, "vllm.entrypoints"), signal.SIGTERM)
    for stream in streams:
        stream.join(90)
        assert (stream.finish, stream.done) == ("length", True)
    stack.wait_agreed(VLLM, epoch_not=before.epoch)


@pytest.mark.parametrize("service", BOTH)
def test_a_deleted_service_drains_and_leaves_nothing(stack: Stack, service: str) -> None:
    stack.wait_agreed(service)
    stream = Stream(stack, service, tokens=60)
    stream.start()
    wait_for("its first event", lambda: stream.events, 60)
    stack.run.cli("delete", service)
    stream.join(90)
    assert (stream.finish, stream.done) == ("length", True)
    wait_for("no pod", lambda: not [p for p in stack.run.items("pods") if service in p["metadata"]["name"]], 60)


def _one_entry(stack: Stack, service: str, words: str, *, lose: bool) -> None:
    """A prompt that the gateways do not see; what its agent logs of it is there, or is lost."""
    before = {number for number, _ in stack.log(service)}
    stack.ask_engine(service, words)

    def logged() -> list[bytes]:
        seq = stack.lease(service).kv_seq
        news = [number for number, _ in stack.log(service) if number not in before]
        return news if news and seq else []

    entries = wait_for(f"what {service} logs of {words}", logged, 20)
    if lose:
        stack.redis.xdel(stack.keys(service).kv_log, *entries)


class Stream(threading.Thread):
    """One streamed chat, read to its end. ``finish``: its finish reason; ``done``: it ended with ``[DONE]``."""

    def __init__(self, stack: Stack, service: str, tokens: int, gateway: int = 0) -> None:
        super().__init__(daemon=True)
        self.events = 0
        self.finish = ""
        self.done = False
        messages = [{"role": "user", "content": f"{next(_numbers)}: a long story about trains, please."}]
        body = {"model": service, "messages": messages, "max_tokens": tokens, "ignore_eos": True, "stream": True}
        self._request = urllib.request.Request(
            f"{stack.run.url(gateway)}/chat/completions",
            json.dumps(body).encode(),
            {"content-type": "application/json"},
        )

    def run(self) -> None:
        with urllib.request.urlopen(self._request, timeout=120) as answer:
            for line in answer:
                if line.startswith(b"data: [DONE]"):
                    self.done = True
                elif line.startswith(b"data: "):
                    self.events += 1
                    for choice in json.loads(line[6:]).get("choices", ()):
                        self.finish = choice.get("finish_reason") or self.finish
