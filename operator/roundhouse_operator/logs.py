"""One JSON object a line: time, level, logger, event, and the event's own fields."""

import json
import logging
import sys
from datetime import UTC, datetime

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class JsonFormatter(logging.Formatter):
    """Whatever is given as ``extra`` becomes a field."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "event": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _PLAIN}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def set_up_logs(level: str) -> None:
    """To stderr; kopf speaks only of what goes wrong."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for library in ("kopf", "aiohttp", "kubernetes"):
        logging.getLogger(library).setLevel(logging.WARNING)
