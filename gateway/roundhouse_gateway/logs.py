"""One line per event on standard error: time, level, logger, event, and its fields as ``name=value``."""

import logging
from collections import defaultdict

_OWN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class LineFormatter(logging.Formatter):
    """Fields given as ``extra`` are shown; the record's own are not."""

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        extra = " ".join(f"{name}={value}" for name, value in record.__dict__.items() if name not in _OWN)
        return f"{line} {extra}" if extra else line


class UnreadableCounter(logging.Handler):
    """Counts what ``roundhouse_kv`` reports as unreadable (another version, truncated), by what it was."""

    EVENT_END = " unreadable"

    def __init__(self, counts: defaultdict[str, int]) -> None:
        super().__init__(logging.WARNING)
        self._counts = counts

    def emit(self, record: logging.LogRecord) -> None:
        event = str(record.msg)
        if event.endswith(self.EVENT_END):
            self._counts[event.removesuffix(self.EVENT_END).replace(" ", "_")] += 1


def count_unreadable(counts: defaultdict[str, int]) -> None:
    logging.getLogger("roundhouse_kv").addHandler(UnreadableCounter(counts))


def configure(level: str) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
