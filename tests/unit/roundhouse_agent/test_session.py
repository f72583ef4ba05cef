"""Profile, self-test and live check of one engine start, against an engine in memory."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from roundhouse_agent import self_test
from roundhouse_agent.session import Comparison, EngineSession
from roundhouse_engines.errors import ProbeError

from tests.unit.roundhouse_agent.engine_double import EngineDouble, render

HELLO = {"messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_test, "EVENTS_WITHIN_S", 0.2)


def session_of(engine: EngineDouble, run_dir: Path) -> EngineSession:
    return EngineSession(engine, None, run_dir, lambda: None)


async def verdict(engine: EngineDouble, run_dir: Path) -> tuple[bool, str]:
    session = session_of(engine, run_dir)
    profile = (await session.prepare()).profile
    await session.close()
    return profile.exact, profile.reason


async def test_an_engine_that_sees_what_is_rendered_is_exact(tmp_path: Path) -> None:
    engine = EngineDouble()
    session = session_of(engine, tmp_path)
    profile = (await session.prepare()).profile
    assert (profile.exact, profile.reason, profile.continuation, profile.layers) == (True, "", True, 2)
    assert len(engine.completed) == 1
    assert session.feed.blocks is not None
    assert session.feed.caught_up
    assert len(session.feed.blocks.keys()) > 0
    await session.close()


async def test_without_tokenize_the_kv_events_decide(tmp_path: Path) -> None:
    engine = EngineDouble(tokenizes=False)
    session = session_of(engine, tmp_path)
    profile = (await session.prepare()).profile
    await session.close()
    assert (profile.exact, profile.continuation) == (True, False)
    assert len({body["cache_salt"] for body in engine.completed}) == 2


def _stripped(body: Mapping[str, Any]) -> str:
    if "messages" in body:
        return render({**body, "messages": [{**m, "content": str(m["content"]).strip()} for m in body["messages"]]})
    return render(body)


def _prefixed(body: Mapping[str, Any]) -> str:
    return ("" if "messages" in body else "<s>") + render(body)


def _only_cached_differs(body: Mapping[str, Any]) -> str:
    return render(body) if "cache_salt" not in body else "x" + render(body)


@pytest.mark.parametrize(
    ("engine", "reason"),
    [
        (EngineDouble(_stripped), "/tokenize of probe chat"),
        (EngineDouble(_prefixed), "/tokenize of the text"),
        (EngineDouble(_only_cached_differs), "KV blocks of a probe chat"),
        (EngineDouble(tells=False), "told of 0 stored blocks"),
    ],
    ids=["chat", "text", "blocks", "no events"],
)
async def test_anything_unequal_is_inexact_with_the_reason(tmp_path: Path, engine: EngineDouble, reason: str) -> None:
    exact, why = await verdict(engine, tmp_path)
    assert not exact
    assert reason in why


async def test_an_inexact_engine_publishes_no_keys(tmp_path: Path) -> None:
    session = session_of(EngineDouble(_stripped), tmp_path)
    await session.prepare()
    assert session.feed.blocks is None
    assert session.feed.caught_up
    await session.close()


async def test_an_engine_whose_tokenize_takes_no_chats_is_judged_by_its_blocks(tmp_path: Path) -> None:
    def refuse(body: Mapping[str, Any]) -> str:
        if "messages" in body and "cache_salt" not in body:
            raise ProbeError("no")
        return render(body)

    assert await verdict(EngineDouble(refuse), tmp_path) == (True, "")


async def test_an_engine_that_fails_in_the_test_is_asked_again_at_the_next_start(tmp_path: Path) -> None:
    def fail(body: Mapping[str, Any]) -> str:
        if "cache_salt" in body:
            raise ProbeError("gone")
        return render(body)

    assert await verdict(EngineDouble(fail), tmp_path) == (False, "the self-test failed: gone")
    assert await verdict(EngineDouble(), tmp_path) == (True, "")


async def test_the_verdict_is_kept_for_the_pods_life(tmp_path: Path) -> None:
    await verdict(EngineDouble(), tmp_path)
    again = EngineDouble()
    assert await verdict(again, tmp_path) == (True, "")
    assert again.completed == []


async def test_another_model_is_tested_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await verdict(EngineDouble(), tmp_path)
    again = EngineDouble()
    files = {"config.json": b'{"num_hidden_layers": 3}'}
    original = again.model_file

    async def changed(name: str) -> bytes | None:
        return files.get(name) or await original(name)

    monkeypatch.setattr(again, "model_file", changed)
    assert await verdict(again, tmp_path) == (True, "")
    assert len(again.completed) == 1


async def test_a_live_check_tells_a_stale_rendering_from_a_wrong_one(tmp_path: Path) -> None:
    engine = EngineDouble()
    session = session_of(engine, tmp_path)
    await session.prepare()
    assert await session.compare(render(HELLO), HELLO) is Comparison.EQUAL
    assert await session.compare("yesterday", HELLO) is Comparison.STALE
    engine.prompt = _stripped
    spaced = {"messages": [{"role": "user", "content": " hello "}]}
    assert await session.compare(render(spaced), spaced) is Comparison.UNEQUAL
    await session.close()


async def test_distrust_ends_the_keys_and_outlives_the_agent(tmp_path: Path) -> None:
    session = session_of(EngineDouble(), tmp_path)
    exact = (await session.prepare()).profile
    profile = session.distrust("live check: other bytes")
    assert profile is not None
    assert (profile.exact, profile.reason, profile.layers) == (False, "live check: other bytes", exact.layers)
    assert session.distrust("again") is None
    assert session.feed.blocks is None
    await session.close()
    assert await verdict(EngineDouble(), tmp_path) == (False, "live check: other bytes")
