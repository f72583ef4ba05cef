"""One line per event: whatever format is asked for, and the event's fields, given as ``extra``, as ``name=value``."""

import logging

_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

LINE = "%(asctime)s %(levelname)s %(name)s %(message)s"


class LineFormatter(logging.Formatter):
    def __init__(self, line: str = LINE) -> None:
        super().__init__(line)

    def formatMessage(self, record: logging.LogRecord) -> str:
        line = super().formatMessage(record)
        extra = " ".join(f"{name}={value}" for name, value in vars(record).items() if name not in _OWN)
        return f"{line} {extra}" if extra else line
