import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from roundhouse_local.errors import SpawnError
from roundhouse_local.processes import ProcessHost

from tests.integration.local.node import alive, until

ENV = {"PATH": "/usr/bin:/bin"}


def shell(script: str) -> list[str]:
    return ["/bin/sh", "-c", script]


async def test_exit_code_and_output_come_back(home: Path) -> None:
    async with ProcessHost() as host:
        process = await host.spawn(shell("echo out; echo err >&2; exit 3"), ENV, home, home / "log")
        assert (await process.wait()).shell_code == 3
    assert (home / "log").read_text() == "out\nerr\n"


async def test_killed_process_reports_its_signal(home: Path) -> None:
    async with ProcessHost() as host:
        process = await host.spawn(["sleep", "60"], ENV, home, home / "log")
        process.signal(signal.SIGUSR1)
        ended = await process.wait()
        assert (ended.signal, ended.shell_code) == (signal.SIGUSR1, 138)


async def test_stop_kills_after_the_grace(home: Path) -> None:
    async with ProcessHost() as host:
        process = await host.spawn(shell("trap '' TERM; echo trapped; sleep 60"), ENV, home, home / "log")
        await until(lambda: (home / "log").read_text() == "trapped\n")
        assert (await process.stop(0.2)).signal == signal.SIGKILL


@pytest.mark.parametrize(
    ("argv", "cwd", "message"),
    [
        (["no-such-program"], "/", "exec no-such-program: No such file or directory"),
        (["/bin/sh"], "/no/such/folder", "working directory /no/such/folder"),
        (["/etc/passwd"], "/", "Permission denied"),
        (["/bin/sh", "a\0b"], "/", "null byte"),
    ],
)
async def test_what_cannot_be_started_is_told(home: Path, argv: list[str], cwd: str, message: str) -> None:
    async with ProcessHost() as host:
        with pytest.raises(SpawnError, match=message):
            await host.spawn(argv, ENV, Path(cwd), home / "log")


async def test_unwritable_log_is_told(home: Path) -> None:
    async with ProcessHost() as host:
        with pytest.raises(SpawnError, match="log file /no/such/log"):
            await host.spawn(["true"], ENV, home, Path("/no/such/log"))


async def test_children_end_with_the_main_process(home: Path) -> None:
    """Also one that has left the session and forgotten its parent."""
    script = "sleep 600 & echo $!; setsid sleep 601 & echo $!; (setsid sh -c 'echo $$; exec sleep 602' &); sleep 0.3"
    async with ProcessHost() as host:
        process = await host.spawn(shell(script), ENV, home, home / "log")
        await process.wait()
        pids = [int(line) for line in (home / "log").read_text().split()]
        assert len(pids) == 3
        assert not any(alive(pid) for pid in pids)


async def test_leaving_the_host_kills_what_runs(home: Path) -> None:
    async with ProcessHost() as host:
        process = await host.spawn(shell("trap '' TERM INT HUP; sleep 600 & wait"), ENV, home, home / "log")
    assert not alive(process.pid)
    assert (await process.wait()).signal == signal.SIGKILL


async def test_nothing_can_be_started_without_the_warden(home: Path) -> None:
    async with ProcessHost() as host:
        pass
    with pytest.raises(SpawnError, match="is gone"):
        await host.spawn(["true"], ENV, home, home / "log")


SUPERVISOR = """
import asyncio, sys
from pathlib import Path
from roundhouse_local.processes import ProcessHost

async def main():
    async with ProcessHost() as host:
        home = Path(sys.argv[1])
        with_children = "echo $$; sleep 600 & echo $!; setsid sleep 600 & echo $!; wait"
        for script in [with_children, "trap '' TERM; echo $$; sleep 600"]:
            await host.spawn(["/bin/sh", "-c", script], {"PATH": "/usr/bin:/bin"}, home, home / "pids")
        print(host._warden.pid, flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.parametrize("who", ["supervisor", "warden"])
async def test_killing_supervisor_or_warden_leaves_no_process(home: Path, who: str) -> None:
    supervisor = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SUPERVISOR, str(home), stdout=asyncio.subprocess.PIPE,
        env={"PYTHONPATH": os.pathsep.join(["operator", "local", "kv_index"]), **ENV},
    )  # fmt: skip
    assert supervisor.stdout is not None
    warden = int(await supervisor.stdout.readline())
    pids = [int(pid) for pid in await until(lambda: _four(home / "pids"))]
    mains = [pids[0], *pids[3:]]
    os.kill(supervisor.pid if who == "supervisor" else warden, signal.SIGKILL)
    expected = [warden, *(pids if who == "supervisor" else mains)]
    try:
        await until(lambda: not any(alive(pid) for pid in expected))
    finally:
        for pid in (pid for pid in [*pids, warden] if alive(pid)):
            os.kill(pid, signal.SIGKILL)
        if supervisor.returncode is None:
            supervisor.kill()
        await supervisor.wait()


def _four(path: Path) -> list[str]:
    found = path.read_text().split() if path.exists() else []
    return found if len(found) == 4 else []
