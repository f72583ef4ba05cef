"""One line per event on standard error: time, level, logger, event, and its fields as ``name=value``."""

import logging

_OWN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class LineFormatter(logging.Formatter):
    """Fields given as ``extra`` are shown; the record's own are not."""

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        extra = " ".join(f"{name}={value}" for name, value in record.__dict__.items() if name not in _OWN)
        return f"{line} {extra}" if extra else line


def configure(level: str) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
