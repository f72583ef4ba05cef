"""Golden files: an InferenceService in, the objects that the plan makes out.

`ROUNDHOUSE_GOLDEN=write pytest …` writes them anew; read the diff before you commit it.
"""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from roundhouse_operator.cluster import INFERENCE_SERVICE, Obj
from roundhouse_operator.companions import companions
from roundhouse_operator.live import Live
from roundhouse_operator.plan import Observed, plan
from roundhouse_operator.settings import Settings
from roundhouse_operator.timestamps import to_timestamp

from tests.unit.roundhouse_operator.world import START

GOLDEN = Path(__file__).parent / "golden"
CASES = sorted(path.name.removesuffix(".in.yaml") for path in GOLDEN.glob("*.in.yaml"))


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _plan(case: Obj) -> list[Obj]:
    """Everything that is made for a new service: EngineReplicas, pods, what it has beside them, and its status."""
    settings = Settings(installation="ns/release", **{"redis_url": "redis://redis:6379/0", **case.get("settings", {})})
    service: Obj = case["service"]
    service["metadata"] |= {
        "namespace": "default", "uid": "service-uid", "generation": 1, "creationTimestamp": to_timestamp(START),
    }  # fmt: skip
    first = plan(Observed(service), Live(), START, settings)
    replicas = [_stored(obj, f"replica-uid-{i}") for i, (_, obj) in enumerate(first.create)]
    second = plan(Observed(service, tuple(replicas)), Live(), START, settings)
    assert len(second.create) == len(replicas)
    beside = companions({"apiVersion": INFERENCE_SERVICE.api_version, **service}, settings)
    return [obj for _, obj in (*first.create, *second.create, *beside)] + [{"status": second.status}]


def _stored(obj: Obj, uid: str) -> Obj:
    meta = {**obj["metadata"], "uid": uid, "generation": 1, "creationTimestamp": to_timestamp(START)}
    return {**obj, "metadata": meta}


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str) -> None:
    case = yaml.safe_load((GOLDEN / f"{name}.in.yaml").read_text())
    expected = GOLDEN / f"{name}.out.yaml"
    text = yaml.dump_all(_plan(case), Dumper=_Dumper, sort_keys=False, width=110)
    if os.environ.get("ROUNDHOUSE_GOLDEN") == "write":
        expected.write_text(text)
    assert text == expected.read_text()


def test_there_are_golden_files() -> None:
    assert len(CASES) >= 7
