"""The command line."""

from pathlib import Path

import pytest
from roundhouse_torch.errors import SettingsError
from roundhouse_torch.kvcache.sizing import block_count, host_memory
from roundhouse_torch.settings import parse_bytes, parse_settings


@pytest.mark.parametrize(
    ("text", "count"), [("1024", 1024), ("2GiB", 2 << 30), ("1.5k", 1500), ("3 MB", 3_000_000), ("1Gi", 1 << 30)]
)
def test_sizes_with_units(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "GiB", "5 cows", "1..2G"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_bytes(text)


def test_flags_as_the_operator_writes_them() -> None:
    argv = "--model /models/x --served-model-name a b --host 127.0.0.9 --port 8000 --kv-events ipc:///r/e --kv-replay ipc:///r/r"
    settings = parse_settings([*argv.split(), "--shutdown-timeout", "10", "--no-enable-prefix-caching"])
    assert settings.model == Path("/models/x")
    assert settings.names == ("a", "b")
    assert (settings.host, settings.port, settings.shutdown_timeout) == ("127.0.0.9", 8000, 10.0)
    assert not settings.enable_prefix_caching


def test_the_folders_name_is_the_models_name_by_default() -> None:
    assert parse_settings(["--model", "/models/smollm2"]).names == ("smollm2",)


@pytest.mark.parametrize(
    "argv",
    [
        ["--block-size", "0"],
        ["--max-num-seqs", "0"],
        ["--kv-cache-fraction", "1.5"],
        ["--port", "70000"],
        ["--kv-replay", "ipc:///x"],
        ["--shutdown-timeout", "-1"],
        ["--max-model-len", "1"],
        ["--threads", "0"],
    ],
)
def test_values_out_of_range_name_the_flag(argv: list[str]) -> None:
    with pytest.raises(SettingsError, match=argv[0]):
        parse_settings(["--model", "/m", *argv])


@pytest.mark.parametrize("argv", [[], ["--model", "/m", "--bogus"], ["--model", "/m", "--port", "x"]])
def test_unknown_and_malformed_flags_end_the_program(argv: list[str]) -> None:
    with pytest.raises(SystemExit):
        parse_settings(argv)


def test_memory_is_the_containers_where_that_is_less(tmp_path: Path) -> None:
    meminfo, limit, unlimited = tmp_path / "meminfo", tmp_path / "max", tmp_path / "none"
    meminfo.write_text("MemTotal:  1000 kB\nMemFree: 5 kB\n")
    limit.write_text("4096\n")
    unlimited.write_text("max\n")
    assert host_memory(meminfo, (unlimited, tmp_path / "absent")) == 1000 * 1024
    assert host_memory(meminfo, (unlimited, limit)) == 4096


def test_a_cache_too_small_for_two_blocks_is_refused() -> None:
    assert block_count(1000, 100) == 10
    with pytest.raises(SettingsError, match="raise --kv-cache-bytes"):
        block_count(199, 100)
