"""``roundhouse-agent fetch`` as a process."""

import asyncio
import os
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Outcome:
    code: int
    last_line: str
    log: str


def fetch_env(uri: str, cache: Path, **env: str) -> dict[str, str]:
    path = os.pathsep.join(str(ROOT / name) for name in ("kv_index", "engines"))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "RH_", "POD_"))}
    return {
        **kept, "PYTHONPATH": path, "RH_MODEL": uri, "RH_MODEL_CACHE": str(cache),
        "RH_MODEL_PATH": str(cache / "model"), **env,
    }  # fmt: skip


async def start_fetch(uri: str, cache: Path, **env: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "roundhouse_agent",
        "fetch",
        env=fetch_env(uri, cache, **env),
        stderr=asyncio.subprocess.PIPE,
    )


async def outcome(process: asyncio.subprocess.Process) -> Outcome:
    _, stderr = await asyncio.wait_for(process.communicate(), 60)
    log = stderr.decode()
    assert process.returncode is not None
    return Outcome(process.returncode, log.strip().rsplit("\n", 1)[-1], log)


async def fetch(uri: str, cache: Path, **env: str) -> Outcome:
    return await outcome(await start_fetch(uri, cache, **env))
