"""``hf://`` against a hub on loopback, with the real client."""

import asyncio
from pathlib import Path

import pytest

from tests.integration.agent.fake_hub import COMMIT, FakeHub, small_model
from tests.integration.agent.fetching import Outcome, fetch, outcome, start_fetch
from tests.integration.agent.replica import eventually
from tests.unit.roundhouse_agent.gguf_files import write_gguf

pytestmark = pytest.mark.integration

SMALL_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json")
BIG = bytes(range(256)) * 160_000  # 41 MB: the client writes 10 MB at a time


async def _all_there(folder: Path) -> bool:
    """The client has finished these files, its own notes on them included."""
    notes = folder / ".cache" / "huggingface" / "download"
    return all((notes / f"{name}.metadata").exists() for name in SMALL_FILES)


async def fetch_from(hub: FakeHub, uri: str, cache: Path, **env: str) -> Outcome:
    return await fetch(uri, cache, HF_ENDPOINT=hub.url, **env)


async def test_only_what_an_engine_needs_is_fetched(tmp_path: Path) -> None:
    async with FakeHub({"org/model": small_model()}) as hub:
        result = await fetch_from(hub, "hf://org/model", tmp_path)
    assert result.code == 0, result.log
    names = {path.name for path in (tmp_path / "model").iterdir()}
    assert names == {".complete", "config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"}
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == small_model()["model.safetensors"]
    assert not (tmp_path / ".partial" / "model").exists()


async def test_a_finished_model_needs_no_hub(tmp_path: Path) -> None:
    async with FakeHub({"org/model": small_model()}) as hub:
        await fetch_from(hub, f"hf://org/model@{COMMIT}", tmp_path)
    result = await fetch(f"hf://org/model@{COMMIT}", tmp_path, HF_ENDPOINT="http://127.0.0.1:9")
    assert result.code == 0, result.log


async def test_a_gguf_repository_is_converted(tmp_path: Path) -> None:
    write_gguf(tmp_path / "source.gguf")
    files = {"model.gguf": (tmp_path / "source.gguf").read_bytes(), "README.md": b"hello"}
    async with FakeHub({"org/model": files}) as hub:
        result = await fetch_from(hub, "hf://org/model", tmp_path)
    assert result.code == 0, result.log
    assert (tmp_path / "model" / "model.safetensors").exists()


async def test_of_several_ggufs_one_must_be_named(tmp_path: Path) -> None:
    write_gguf(tmp_path / "source.gguf")
    data = (tmp_path / "source.gguf").read_bytes()
    async with FakeHub({"org/model": {"a.gguf": data, "b.gguf": data}}) as hub:
        refused = await fetch_from(hub, "hf://org/model", tmp_path)
        named = await fetch_from(hub, "hf://org/model/b.gguf", tmp_path)
    assert "a.gguf, b.gguf" in refused.last_line
    assert "hf://org/model/a.gguf" in refused.last_line
    assert named.code == 0, named.log
    assert hub.downloads("a.gguf") == []


async def test_a_missing_repository_names_the_field_to_fix(tmp_path: Path) -> None:
    async with FakeHub({}) as hub:
        result = await fetch_from(hub, "hf://org/absent", tmp_path)
    assert result.code == 1
    assert result.last_line.startswith("hf://org/absent does not exist on the hub")
    assert "spec.model" in result.last_line


async def test_a_missing_revision_is_named(tmp_path: Path) -> None:
    async with FakeHub({"org/model": small_model()}) as hub:
        result = await fetch_from(hub, "hf://org/model@v9", tmp_path)
    assert result.last_line == "hf://org/model has no revision 'v9': check spec.model"


async def test_a_gated_repository_wants_a_token_then_the_right_one(tmp_path: Path) -> None:
    async with FakeHub({"org/model": small_model()}, token="good", gated={"org/model"}) as hub:
        none = await fetch_from(hub, "hf://org/model", tmp_path)
        wrong = await fetch_from(hub, "hf://org/model", tmp_path, HF_TOKEN="bad")
        right = await fetch_from(hub, "hf://org/model", tmp_path, HF_TOKEN="good")
    assert none.last_line == "hf://org/model is gated: put a hub token into spec.modelSecret"
    assert wrong.last_line == "hf://org/model is gated: accept its terms with the token's account"
    assert right.code == 0, right.log
    assert "bad" not in wrong.log
    assert "good" not in right.log


async def test_a_wrong_hash_leaves_no_model_and_only_that_file_is_fetched_again(tmp_path: Path) -> None:
    async with FakeHub({"org/model": small_model()}, wrong={"model.safetensors"}) as hub:
        broken = await fetch_from(hub, "hf://org/model", tmp_path)
        left = (tmp_path / "model").exists()
        hub.wrong.clear()
        hub.requests.clear()
        again = await fetch_from(hub, "hf://org/model", tmp_path)
    assert broken.code == 1
    assert "model.safetensors came with a wrong hash" in broken.last_line
    assert not left
    assert again.code == 0, again.log
    assert len(hub.downloads("model.safetensors")) == 1
    assert hub.downloads("config.json") == []


async def test_a_download_that_breaks_off_is_resumed(tmp_path: Path) -> None:
    files = {**small_model(), "model.safetensors": BIG}
    async with FakeHub({"org/model": files}, cut={"model.safetensors": 25_000_000}) as hub:
        result = await fetch_from(hub, "hf://org/model", tmp_path)
    assert result.code == 0, result.log
    first, second = hub.downloads("model.safetensors")
    assert first == ""
    assert second.startswith("bytes=20971520-")
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == BIG


async def test_after_a_killed_fetch_only_what_was_not_finished_is_fetched(tmp_path: Path) -> None:
    async with FakeHub({"org/model": small_model()}, stall={"model.safetensors": 5_000_000}) as hub:
        process = await start_fetch("hf://org/model", tmp_path, HF_ENDPOINT=hub.url)
        await asyncio.wait_for(hub.stalled.wait(), 30)
        await eventually("small files", lambda: _all_there(tmp_path / ".partial/model/hub"))
        process.kill()
        killed = await outcome(process)
        left = (tmp_path / "model").exists()
        hub.requests.clear()
        result = await fetch_from(hub, "hf://org/model", tmp_path)
    assert killed.code == -9
    assert not left
    assert result.code == 0, result.log
    assert hub.downloads("model.safetensors") == [""]
    assert [hub.downloads(name) for name in SMALL_FILES] == [[], [], []]


async def test_an_unreachable_hub_is_told_from_a_missing_model(tmp_path: Path) -> None:
    result = await fetch("hf://org/model", tmp_path, HF_ENDPOINT="http://127.0.0.1:9")
    assert result.code == 1
    assert "the hub does not answer" in result.last_line
    assert "network" in result.last_line


async def test_a_repository_without_weights_is_refused(tmp_path: Path) -> None:
    async with FakeHub({"org/model": {"config.json": b"{}", "pytorch_model.bin": b"x"}}) as hub:
        result = await fetch_from(hub, "hf://org/model", tmp_path)
    assert "neither safetensors nor GGUF" in result.last_line


async def test_a_model_without_a_fast_tokenizer_is_refused(tmp_path: Path) -> None:
    files = {name: data for name, data in small_model().items() if name != "tokenizer.json"}
    async with FakeHub({"org/model": files}) as hub:
        result = await fetch_from(hub, "hf://org/model", tmp_path)
    assert result.last_line == "hf://org/model has no tokenizer.json: choose a model with a fast tokenizer"
