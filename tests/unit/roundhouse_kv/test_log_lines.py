import logging
import sys

from roundhouse_kv.log_lines import LineFormatter


def test_log_lines_show_their_fields() -> None:
    record = logging.makeLogRecord({"msg": "redis_lost", "levelname": "WARNING", "error": "gone"})
    assert LineFormatter("%(levelname)s %(message)s").format(record) == "WARNING redis_lost error=gone"


def test_fields_stand_before_the_traceback() -> None:
    try:
        raise ValueError("bad")
    except ValueError:
        record = logging.makeLogRecord({"msg": "crashed", "exc_info": sys.exc_info(), "pod": "a"})
    lines = LineFormatter("%(message)s").format(record).splitlines()
    assert (lines[0], lines[-1]) == ("crashed pod=a", "ValueError: bad")
