"""The trace as Dynamo's replay reads it."""

from benchmarks.routing.dynamo_replay import _row
from benchmarks.routing.traces import Request


def test_every_started_block_has_an_id_and_the_last_one_is_a_requests_own() -> None:
    one, other = (_row(Request(at, 1100, 7, (1, 2))) for at in (0.5, 0.75))
    assert (one["timestamp"], one["input_length"], one["output_length"]) == (500, 1100, 7)
    assert one["hash_ids"][:2] == other["hash_ids"][:2] == [1, 2]  # type: ignore[index]
    assert len(one["hash_ids"]) == 3  # type: ignore[arg-type]
    assert one["hash_ids"] != other["hash_ids"]
    assert _row(Request(0.0, 1024, 1, (1, 2)))["hash_ids"] == [1, 2]
