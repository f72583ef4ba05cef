"""The few figures that an agent needs from an engine's Prometheus page, under vLLM's names of today and of before."""

import re
from collections.abc import Mapping
from typing import Final

from roundhouse_engines.errors import ProbeError
from roundhouse_engines.probe import LoadReport

_RUNNING: Final = ("vllm:num_requests_running",)
_WAITING: Final = ("vllm:num_requests_waiting",)
_KV_USED: Final = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
_TOKENS: Final = ("vllm:generation_tokens_total", "vllm:generation_tokens")
_CACHE: Final = "vllm:cache_config_info"
_SAMPLE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? ([^ ]+)(?: \d+)?$", re.MULTILINE)
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_WANTED: Final = frozenset({*_RUNNING, *_WAITING, *_KV_USED, *_TOKENS, _CACHE})


def read_page(page: str) -> tuple[LoadReport, Mapping[str, str]]:
    """The load, summed over data-parallel ranks, and the labels of the cache's configuration.

    Raises `ProbeError` when running or waiting requests are not on the page: unknown is not zero.
    """
    sums: dict[str, list[float]] = {}
    cache: dict[str, str] = {}
    for name, labels, value in _SAMPLE.findall(page):
        if name not in _WANTED:
            continue
        if name == _CACHE:
            cache = dict(_LABEL.findall(labels))
        else:
            sums.setdefault(name, []).append(_number(name, value))
    used = _pick(sums, _KV_USED)
    running, waiting = _pick(sums, _RUNNING), _pick(sums, _WAITING)
    if not running or not waiting:
        raise ProbeError(f"the metrics page has no {_RUNNING[0]} or no {_WAITING[0]}")
    block_size = _integer(cache.get("block_size"))
    report = LoadReport(
        waiting=round(sum(waiting)),
        running=round(sum(running)),
        kv_used=sum(used) / len(used) if used else 0.0,
        kv_tokens=_integer(cache.get("kv_cache_size_tokens")) or _integer(cache.get("num_gpu_blocks")) * block_size,
        block_size=block_size,
        tokens_total=round(sum(_pick(sums, _TOKENS))),
    )
    return report, cache


def _pick(sums: Mapping[str, list[float]], names: tuple[str, ...]) -> list[float]:
    return next((sums[name] for name in names if name in sums), [])


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ProbeError(f"the metrics page has {name} {text!r}") from error


def _integer(text: str | None) -> int:
    """Labels hold ``None`` until the engine has measured its memory."""
    return int(text) if text is not None and text.isdigit() else 0
