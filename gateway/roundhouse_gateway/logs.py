"""Logs go to standard error, one line per event; what cannot be read in Redis is counted as well."""

import logging
from collections import defaultdict

from roundhouse_kv.log_lines import LineFormatter


class UnreadableCounter(logging.Handler):
    """Counts what ``roundhouse_kv`` reports as unreadable (another version, truncated), by what it was."""

    EVENT_END = "_unreadable"

    def __init__(self, counts: defaultdict[str, int]) -> None:
        super().__init__(logging.WARNING)
        self._counts = counts

    def emit(self, record: logging.LogRecord) -> None:
        event = str(record.msg)
        if event.endswith(self.EVENT_END):
            self._counts[event.removesuffix(self.EVENT_END)] += 1


def count_unreadable(counts: defaultdict[str, int]) -> None:
    logging.getLogger("roundhouse_kv").addHandler(UnreadableCounter(counts))


def configure(level: str) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
