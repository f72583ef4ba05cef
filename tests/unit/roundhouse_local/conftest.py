import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from roundhouse_local.api import NODE, MemoryCluster
from roundhouse_local.api.metadata import Stamps
from roundhouse_operator.cluster import Obj

from tests.unit.roundhouse_local.objects import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def stamps(clock: Clock) -> Stamps:
    counter: Iterator[int] = itertools.count(1)
    return Stamps(clock, uid=lambda: f"uid-{next(counter)}")


@pytest.fixture
def cluster(stamps: Stamps) -> MemoryCluster:
    return MemoryCluster(stamps=stamps, bookmark_s=0.02)


@pytest.fixture
def add_node(cluster: MemoryCluster) -> Callable[..., Any]:
    async def add(name: str, gpus: int = 0, labels: dict[str, str] | None = None) -> Obj:
        allocatable = {"cpu": "64", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": str(gpus)}
        node = {"metadata": {"name": name, "labels": labels or {}}, "status": {"allocatable": allocatable}}
        return await cluster.create(NODE, node)

    return add
