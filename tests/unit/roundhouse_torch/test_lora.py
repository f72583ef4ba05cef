"""LoRA: several adapters in one batch answer as transformers does with each merged into the weights."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from roundhouse_engines.probe import BlocksStored
from roundhouse_engines.vllm.frames import FrameDecoder
from roundhouse_torch.engine.adapters import Adapters
from roundhouse_torch.engine.build import build
from roundhouse_torch.engine.core import EngineCore
from roundhouse_torch.errors import SettingsError
from roundhouse_torch.kvcache.events import BlockStored
from roundhouse_torch.messages.command import Add, Sampling
from roundhouse_torch.models.adapter import AdapterError
from roundhouse_torch.settings import EngineSettings
from safetensors.torch import load_file, save_file

from tests.support.adapters import greedy, merged, write_adapter
from tests.support.tiny_models import write_model

PROMPT = [(7 * k) % 500 + 3 for k in range(40)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def folders(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("adapters")
    return {
        "one": write_adapter(root / "one", model, seed=1),
        "two": write_adapter(root / "two", model, seed=2, rank=7),
        "rs": write_adapter(root / "rs", model, seed=3, use_rslora=True),
    }


@pytest.fixture(scope="module")
def expected(model: Path, folders: dict[str, Path]) -> dict[str, list[int]]:
    torch.set_num_threads(1)
    answers = {name: greedy(merged(model, folder), PROMPT, 12) for name, folder in folders.items()}
    answers[""] = greedy(merged(model, None), PROMPT, 12)
    assert len({tuple(answer) for answer in answers.values()}) == 4
    return answers


def engine(model: Path, folders: dict[str, Path], **fields: Any) -> EngineCore:
    settings = EngineSettings(model=model, kv_cache_bytes=1 << 21, threads=1, enable_lora=True, **fields)
    core = build(settings).core
    for name, folder in folders.items():
        adapters(core).load(name, folder)
    return core


def adapters(core: EngineCore) -> Adapters:
    assert core.entrance.adapters is not None
    return core.entrance.adapters


def answers(core: EngineCore, *asked: str) -> list[tuple[list[int], int, str | None]]:
    """Tokens, cached tokens and error of one request for each adapter name."""
    for id, name in enumerate(asked):
        core.add(Add(id, list(PROMPT), len(PROMPT) + 12, Sampling(temperature=0), adapter=name))
    tokens: list[list[int]] = [[] for _ in asked]
    cached, errors = [0] * len(asked), [None] * len(asked)
    while core.busy:
        for output in core.step().outputs:
            tokens[output.id] += output.tokens
            cached[output.id] += output.cached
            errors[output.id] = output.error or errors[output.id]  # type: ignore[call-overload]
    return list(zip(tokens, cached, errors, strict=True))


@pytest.mark.parametrize("spec_method", ["none", "ngram"])
def test_a_batch_of_several_adapters_and_none(
    model: Path, folders: dict[str, Path], expected: dict[str, list[int]], spec_method: str
) -> None:
    names = ("one", "", "two", "rs", "one", "")
    core = engine(model, folders, spec_method=spec_method, spec_max_batch=8)
    assert [tokens for tokens, _, _ in answers(core, *names)] == [expected[name] for name in names]
    assert [tokens for tokens, _, _ in answers(core, "two")] == [expected["two"]]


def test_more_adapters_than_slots_take_turns(
    model: Path, folders: dict[str, Path], expected: dict[str, list[int]]
) -> None:
    core = engine(model, folders, max_loras=1)
    names = ("one", "two", "one", "rs", "", "two")
    assert [tokens for tokens, _, _ in answers(core, *names)] == [expected[name] for name in names]


def test_a_stream_of_requests_for_one_adapter_does_not_keep_others_out(model: Path, folders: dict[str, Path]) -> None:
    core = engine(model, folders, max_loras=1)
    waiting, ended = {"two"}, False
    for id in range(200):
        core.add(Add(id, list(PROMPT), len(PROMPT) + 4, Sampling(temperature=0), adapter="one"))
        if id == 3:
            core.add(Add(1000, list(PROMPT), len(PROMPT) + 4, Sampling(temperature=0), adapter="two"))
        ended |= any(output.id == 1000 and output.finish for output in core.step().outputs)
    assert ended, waiting


def test_adapters_do_not_share_blocks_with_each_other_or_the_model(model: Path, folders: dict[str, Path]) -> None:
    core = engine(model, folders)
    assert [cached for name in ("", "one", "two") for _, cached, _ in answers(core, name)] == [0, 0, 0]
    assert [cached for name in ("one", "", "two") for _, cached, _ in answers(core, name)] == [32, 32, 32]


def test_events_name_the_adapter_of_each_block(model: Path, folders: dict[str, Path]) -> None:
    core = engine(model, folders)
    core.add(Add(0, list(PROMPT), len(PROMPT) + 1, Sampling(temperature=0), "salt", "one"))
    (event,) = [event for event in core.step().events if isinstance(event, BlockStored)]
    assert event.lora_name == "one"
    assert event.extra_keys == [["one", "salt"], ["one"]]
    (read,) = FrameDecoder().decode(msgspec.msgpack.encode([1.5, [event], 0]))
    assert isinstance(read, BlocksStored)
    assert (read.adapter, read.salt, read.tokens) == ("one", "salt", tuple(PROMPT[:32]))


def test_another_adapter_under_the_same_name_does_not_meet_the_old_ones_blocks(
    model: Path, folders: dict[str, Path], expected: dict[str, list[int]]
) -> None:
    core = engine(model, {"one": folders["one"]})
    answers(core, "one")
    adapters(core).load("one", folders["two"])
    assert answers(core, "one") == [(expected["two"], 0, None)]
    adapters(core).load("one", folders["one"])
    assert answers(core, "one") == [(expected["one"], 32, None)]


def test_an_unloaded_adapter_serves_what_runs_and_refuses_what_comes(
    model: Path, folders: dict[str, Path], expected: dict[str, list[int]]
) -> None:
    core = engine(model, folders)
    core.add(Add(0, list(PROMPT), len(PROMPT) + 12, Sampling(temperature=0), adapter="one"))
    tokens = [token for output in core.step().outputs for token in output.tokens]
    adapters(core).unload("one")
    with pytest.raises(AdapterError, match="in use"):
        adapters(core).load("one", folders["two"])
    while core.busy:
        tokens += [token for output in core.step().outputs for token in output.tokens]
    assert tokens == expected["one"]
    ((nothing, _, error),) = answers(core, "one")
    assert nothing == []
    assert error is not None
    adapters(core).load("one", folders["two"])


def test_an_abort_gives_its_slot_back(model: Path, folders: dict[str, Path], expected: dict[str, list[int]]) -> None:
    core = engine(model, folders, max_loras=1)
    for id, name in enumerate(("one", "one", "two")):
        core.add(Add(id, list(PROMPT), len(PROMPT) + 12, Sampling(temperature=0), adapter=name))
    core.step()
    core.abort(0)
    core.abort(1)
    core.abort(2)
    assert not core.busy
    assert answers(core, "two") == [(expected["two"], 0, None)]


def broken(folder: Path, source: Path, **change: Any) -> Path:
    folder.mkdir()
    tensors = load_file(source / "adapter_model.safetensors")
    config = json.loads((source / "adapter_config.json").read_text())
    first = next(key for key in sorted(tensors) if "lora_A" in key)
    match change:
        case {"rename": name}:
            tensors = {key.replace("q_proj", name): value for key, value in tensors.items()}
        case {"without": "lora_B"}:
            del tensors[first.replace("lora_A", "lora_B")]
        case {"shape": _}:
            tensors[first] = tensors[first][:, :-1].contiguous()
        case {"extra": name}:
            tensors[name] = torch.zeros(1)
        case {"empty": _}:
            tensors = {}
        case _:
            config |= change
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"use_dora": True}, "use_dora"),
        ({"bias": "all"}, "bias"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"alpha_pattern": {"q_proj": 3}}, "alpha_pattern"),
        ({"rename": "c_attn"}, "c_attn"),
        ({"without": "lora_B"}, "do not fit"),
        ({"shape": 1}, "do not fit"),
        ({"extra": "base_model.model.lm_head.weight"}, "lm_head"),
        ({"empty": 1}, "no weights"),
    ],
)
def test_adapters_that_do_not_fit_are_refused_with_the_reason(
    model: Path, folders: dict[str, Path], tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    core = engine(model, {})
    with pytest.raises(AdapterError, match=reason):
        adapters(core).load("bad", broken(tmp_path / "bad", folders["one"], **change))


def test_a_rank_above_the_limit_and_a_missing_folder(model: Path, folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="--max-lora-rank 2"):
        engine(model, {}, max_lora_rank=2, lora_modules=(f"one={folders['one']}",))
    with pytest.raises(SettingsError, match="adapter_config"):
        engine(model, {}, lora_modules=(f"one={tmp_path}",))
