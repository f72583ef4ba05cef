"""Progress of a fetch, posted to the agent of the same pod.

The work reports as often as it likes; a thread of its own posts the latest value at most twice a second and gives up
silently: a fetch never waits for, or fails by, whoever watches it.
"""

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from urllib.error import URLError
from urllib.request import Request, urlopen

log = logging.getLogger(__name__)

POST_PERIOD_S = 0.5
POST_TIMEOUT_S = 1.0
WATCH_PERIOD_S = 0.25


class ProgressReporter:
    """Context manager around one fetch. ``url`` empty: reports go nowhere."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._latest: tuple[str, int, int] | None = None
        self._stop = Event()
        self._thread = Thread(target=self._run, name="progress", daemon=True)

    def report(self, phase: str, done: int, total: int = 0) -> None:
        """Bytes ``done`` of ``total`` (0 = unknown); any thread may call it."""
        self._latest = (phase, done, total)

    def __enter__(self) -> "ProgressReporter":
        if self._url:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._url:
            self._thread.join(timeout=2 * POST_TIMEOUT_S)

    def _run(self) -> None:
        sent: tuple[str, int, int] | None = None
        ended = False
        while not ended:
            ended = self._stop.wait(POST_PERIOD_S)
            latest = self._latest
            if latest is not None and latest != sent and self._post(latest):
                sent = latest

    def _post(self, value: tuple[str, int, int]) -> bool:
        phase, done, total = value
        body = json.dumps({"phase": phase, "done": done, "total": total}).encode()
        request = Request(self._url, body, {"content-type": "application/json"}, method="POST")
        try:
            with urlopen(request, timeout=POST_TIMEOUT_S):
                return True
        except (URLError, OSError) as error:
            log.debug("progress_not_posted", extra={"reason": str(error)})
            return False


@contextmanager
def watched_folder(folder: Path, report: Callable[[int], None]) -> Iterator[None]:
    """Report the size of ``folder`` while the block runs, for downloads done by somebody else's code."""
    stop = Event()

    def watch() -> None:
        while not stop.wait(WATCH_PERIOD_S):
            report(folder_size(folder))

    thread = Thread(target=watch, name="download-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def folder_size(folder: Path) -> int:
    """Bytes of all files below; files that vanish while it looks count as nothing."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue
    return total
