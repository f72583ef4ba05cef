"""docs/operations.md tells every reason and every condition that the operator gives, and no other."""

from pathlib import Path

from roundhouse_operator.live import Live
from roundhouse_operator.plan import Observed, plan
from roundhouse_operator.reasons import PENDING, STUCK, Reason

from tests.unit.roundhouse_operator.world import SETTINGS, START, service

PAGE = (Path(__file__).parents[3] / "docs" / "operations.md").read_text()


def _rows(heading: str) -> list[list[str]]:
    section = PAGE.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:] if not line.startswith("|---")]


def test_every_reason_has_one_row_with_what_to_do() -> None:
    rows = _rows("Reasons")
    assert sorted(row[0] for row in rows) == sorted(reason.value for reason in Reason)
    assert all(len(row) == 4 and all(row) for row in rows)


def test_what_a_replica_may_say_is_told_of_replicas() -> None:
    of_replicas = {row[0] for row in _rows("Reasons") if "replica" in row[1]}
    assert of_replicas == {str(reason) for reason in (*STUCK, *PENDING, Reason.READY)}


def test_every_condition_has_a_row() -> None:
    obj = service()
    obj["metadata"] |= {"uid": "u", "creationTimestamp": "2023-11-14T22:13:20Z"}
    status = plan(Observed(obj), Live(), START, SETTINGS).status
    assert status is not None
    assert [row[0] for row in _rows("Conditions")] == [item["type"] for item in status["conditions"]]
