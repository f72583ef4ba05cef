"""The warden: parent of every process of a local run. Standard library only; run as a script, not imported.

It reads one JSON line per request from the socket given as its argument and writes one per event:

    {"op": "spawn", "id": 1, "argv": […], "env": {…}, "cwd": "…", "log": "…"}
                                               → {"id": 1, "pid": 42} or {"id": 1, "error": "…"}
    {"op": "signal", "id": 1, "signal": 15}   to the main process of 1
    {"op": "kill", "id": 1}                   SIGKILL to every process of 1
    … the main process of 1 is gone           → {"id": 1, "code": 0} or {"id": 1, "signal": 9}

A container's processes die with its main process, as in a PID namespace: the warden finds them by session and by a mark
in their environment, and adopts those whose parent died (PR_SET_CHILD_SUBREAPER). Should the warden itself be killed,
PR_SET_PDEATHSIG takes the main processes along. End of file on the socket means that the supervisor is gone.
"""

import ctypes
import json
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
MARK = "ROUNDHOUSE_PROCESS"
SWEEPS = 200
"""How often dying processes are looked for, 10 ms apart, before the warden goes on without them."""

libc = ctypes.CDLL(None, use_errno=True)


class Warden:
    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._mains: dict[int, int] = {}  # pid → id
        self._pid = os.getpid()

    def run(self) -> None:
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        rest = b""
        while True:
            ready, _, _ = select.select([self._link.fileno(), wake_read], [], [])
            if wake_read in ready:
                os.read(wake_read, 4096)
                self._reap()
            if self._link.fileno() in ready:
                data = self._link.recv(1 << 16)
                if not data:
                    return
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self._handle(json.loads(line))

    def end(self) -> None:
        """Kill all descendants. As a subreaper the warden becomes the parent of each whose parent dies."""
        for _ in range(SWEEPS):
            for pid in _descendants(self._pid):
                _kill(pid, signal.SIGKILL)
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                return
            time.sleep(0.01)

    def _handle(self, request: dict[str, Any]) -> None:
        number = request["id"]
        pid = next((pid for pid, owner in self._mains.items() if owner == number), None)
        if request["op"] == "spawn":
            self._spawn(number, request)
        elif pid is not None and request["op"] == "signal":
            _kill(pid, request["signal"])
        elif pid is not None and request["op"] == "kill":
            self._kill_processes_of(number, pid)

    def _spawn(self, number: int, request: dict[str, Any]) -> None:
        request["env"][MARK] = str(number)
        read, write = os.pipe2(os.O_CLOEXEC)
        pid = os.fork()
        if pid == 0:
            _become(request, self._pid, write)
        os.close(write)
        with os.fdopen(read, "rb") as failed:
            error = failed.read().decode()
        if error:
            os.waitpid(pid, 0)
            self._tell(id=number, error=error)
        else:
            self._mains[pid] = number
            self._tell(id=number, pid=pid)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            number = self._mains.pop(pid, None)
            if number is None:
                continue
            self._kill_processes_of(number, pid)
            if os.WIFSIGNALED(status):
                self._tell(id=number, signal=os.WTERMSIG(status))
            else:
                self._tell(id=number, code=os.WEXITSTATUS(status))

    def _kill_processes_of(self, number: int, main: int) -> None:
        for _ in range(SWEEPS):
            found = [pid for pid in _descendants(self._pid) if _belongs(pid, number, main)]
            if not found:
                return
            for pid in found:
                _kill(pid, signal.SIGKILL)
            if main in found:  # Its exit is reported by _reap, which sweeps again.
                return
            time.sleep(0.01)

    def _tell(self, **event: object) -> None:
        self._link.sendall(json.dumps(event).encode() + b"\n")


def _become(request: dict[str, Any], warden: int, failed: int) -> None:
    """In the forked child: turn into the program asked for, or say why not, and never return."""
    step = "cannot start"
    try:
        os.setsid()
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != warden:
            os._exit(127)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        step = f"log file {request['log']}"
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        step = f"working directory {request['cwd']}"
        os.chdir(request["cwd"])
        step = f"exec {request['argv'][0]}"
        os.execvpe(request["argv"][0], request["argv"], request["env"])
    except (OSError, ValueError) as error:
        os.write(failed, f"{step}: {getattr(error, 'strerror', error)}".encode())
    finally:
        os._exit(127)


def _descendants(root: int) -> list[int]:
    """Process ids below ``root``, from one look at /proc; those that are dead already are left out."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            fields = _stat(int(name))
            if fields and fields[0] != "Z":
                children.setdefault(int(fields[1]), []).append(int(name))
    found, todo = [], [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def _belongs(pid: int, number: int, main: int) -> bool:
    fields = _stat(pid)
    if not fields:
        return False
    if int(fields[3]) == main:
        return True
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return f"{MARK}={number}".encode() in file.read().split(b"\0")
    except OSError:
        return False


def _stat(pid: int) -> list[str]:
    """State, parent, process group, session … of a process; empty when it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def _kill(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    warden = Warden(socket.socket(fileno=int(sys.argv[1])))
    try:
        warden.run()
    except OSError:  # The supervisor went while we told it something.
        pass
    finally:
        warden.end()


if __name__ == "__main__":
    main()
