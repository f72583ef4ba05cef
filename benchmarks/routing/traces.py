"""Public traces as lists of requests, sorted by arrival: Mooncake JSONL, WEKA's Claude Code sessions, Azure CSV.

A request's ``blocks`` are chained ids of its full 512-token blocks: equal ids mean equal prefixes. Files are read plain
or gzipped from ``RH_TRACES``, else from ``shared/traces`` beside the checkout.
"""

import csv
import gzip
import io
import json
import os
import random
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from xxhash import xxh3_64_intdigest

from benchmarks.harness import ROOT, BenchmarkError

BLOCK_TOKENS: Final = 512
SESSION_BLOCK_TOKENS: Final = 64
STAMP_SECONDS: Final = 3.0


class Request(NamedTuple):
    """``at`` is in seconds from the trace's start; ``session`` is empty where the trace does not tell."""

    at: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]
    session: str = ""


def trace_folder() -> Path:
    """Where the trace files are. Raises `BenchmarkError` saying where to put them."""
    if given := os.environ.get("RH_TRACES"):
        return Path(given)
    for parent in (ROOT, *ROOT.parents):
        if (folder := parent / "shared" / "traces").is_dir():
            return folder
    raise BenchmarkError(
        "no traces: set RH_TRACES to a folder with mooncake_conversation_trace.jsonl[.gz] and the others"
    )


def mooncake(path: Path, *, seed: int = 1, spread_s: float = STAMP_SECONDS) -> list[Request]:
    """Real Mooncake traces stamp arrivals on a 3 s grid, ten requests at one instant: each is moved by up to
    ``spread_s`` seconds, 0 leaves the bursts as they are."""
    rng = random.Random(seed)
    requests = []
    for line in _lines(path):
        row = json.loads(line)
        full = row["input_length"] // BLOCK_TOKENS
        at = row["timestamp"] / 1000 + (rng.random() * spread_s if spread_s else 0.0)
        requests.append(Request(at, row["input_length"], max(1, row["output_length"]), tuple(row["hash_ids"][:full])))
    requests.sort(key=lambda request: request.at)
    return requests


def azure(path: Path) -> list[Request]:
    """Lengths and arrivals only: no prefixes."""
    rows = list(csv.DictReader(_lines(path)))
    stamps = [datetime.fromisoformat(row["TIMESTAMP"][:26]) for row in rows]
    requests = [
        Request((at - stamps[0]).total_seconds(), int(row["ContextTokens"]), max(1, int(row["GeneratedTokens"])), ())
        for at, row in zip(stamps, rows, strict=True)
    ]
    requests.sort(key=lambda request: request.at)
    return requests


def sessions(
    path: Path,
    *,
    count: int,
    seed: int = 1,
    window_s: float = 3600.0,
    most_tokens: int = 200_000,
    longest_gap_s: float = 600.0,
) -> list[Request]:
    """An hour of ``count`` real sessions: they start uniformly over two hours, gaps are cut to ``longest_gap_s``, and
    what falls into the second hour is kept. Sessions with equal sizes of tool definitions and system prompt share
    those leading blocks (an assumption: the published ids are local to a session)."""
    rng = random.Random(seed)
    known = [json.loads(line) for line in _lines(path)]
    rng.shuffle(known)
    requests: list[Request] = []
    for index in range(count):
        session = known[index % len(known)]
        name = f"{session['id']}#{index // len(known)}"
        common = (session["tool"] or 0) + (session["sys"] or 0)
        begin = rng.uniform(-window_s, window_s)
        for at, owner, shared, row in _turns(session["req"], begin, name, common // BLOCK_TOKENS, longest_gap_s):
            if 0 <= at <= window_s and 0 < row[1] <= most_tokens:
                blocks = _session_blocks(row, owner, shared, f"{session['tool']}/{session['sys']}")
                requests.append(Request(at, row[1], max(1, row[2]), blocks, owner))
    requests.sort(key=lambda request: request.at)
    return requests


def _turns(
    rows: list[Any], begin: float, name: str, shared: int, longest_gap_s: float
) -> Iterator[tuple[float, str, int, list[Any]]]:
    """(arrival, session or sub-agent, blocks shared with others, row) of a session and, inside it, its sub-agents."""
    clock, last = begin, 0.0
    for row in rows:
        if isinstance(row, dict):
            yield from _turns(row["requests"], clock, f"{name}/{row['t']}", 0, longest_gap_s)
            continue
        clock += min(max(row[0] - last, 0.0), longest_gap_s)
        last = row[0]
        yield clock, name, shared, row


def _session_blocks(row: list[Any], owner: str, shared: int, common: str) -> tuple[int, ...]:
    """The 64-token local ids of one request, eight at a time, as chained ids of 512-token blocks."""
    ids = [first + offset for first, length in row[3] for offset in range(length)]
    per_block = BLOCK_TOKENS // SESSION_BLOCK_TOKENS
    full = min(len(ids), row[1] // SESSION_BLOCK_TOKENS) // per_block
    blocks: list[int] = []
    parent = 0
    for index in range(full):
        content = (
            f"{common}/{index}" if index < shared else f"{owner}/{ids[index * per_block : (index + 1) * per_block]}"
        )
        parent = xxh3_64_intdigest(content.encode(), parent)
        blocks.append(parent)
    return tuple(blocks)


def _lines(path: Path) -> Iterator[str]:
    packed = path.with_name(path.name + ".gz")
    if path.suffix != ".gz" and not path.exists() and packed.exists():
        path = packed
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
            assert isinstance(file, io.TextIOBase)
            yield from file
    except FileNotFoundError as error:
        raise BenchmarkError(f"no trace {path}: set RH_TRACES to the folder that has it") from error
