"""One real Kubernetes for the whole run.

By default that of local/kubernetes, started for this run, with the images of this working tree. With `--kubeconfig`
one that is there already and has the images, such as `make kind` leaves; `--chart-option` says how it finds them.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.kube import CHART, Kube, eventually
from tests.cluster.local_cluster import SCRIPTS, LocalCluster, build_images, running
from tests.cluster.release import Release


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("cluster")
    group.addoption("--kubeconfig", type=Path, help="test this cluster instead of starting one")
    group.addoption("--chart-option", action="append", default=[], help="option for helm in that cluster (repeatable)")
    group.addoption("--reuse", type=Path, help="test the local cluster that runs on this folder, and leave it running")
    group.addoption("--nodes", type=int, default=1, help="nodes of the cluster that is started")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # The first test's fixtures start a cluster and build images, which have limits of their own.
    for item in items:
        item.add_marker(pytest.mark.timeout(300, func_only=True))


@pytest.fixture(scope="session")
def local_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """The started cluster, for tests that need its nodes' insides."""
    if reuse := request.config.getoption("--reuse"):
        cluster = LocalCluster(reuse.absolute())
        cluster.join_network()
        yield cluster
        return
    nodes: int = request.config.getoption("--nodes")
    # NotReady within seconds, because a test kills a node.
    patience = "--kcm-arg=--node-monitor-grace-period=8s" if nodes > 1 else ""
    with running(tmp_path_factory.mktemp("cluster"), nodes=nodes, control_args=patience) as cluster:
        cluster.join_network()
        yield cluster


@pytest.fixture(scope="session")
def kube(request: pytest.FixtureRequest) -> Kube:
    given: Path | None = request.config.getoption("--kubeconfig")
    if given is not None:
        return Kube(given.absolute(), tuple(request.config.getoption("--chart-option")))
    local: LocalCluster = request.getfixturevalue("local_cluster")
    return Kube(local.kubeconfig, ("--values", str(SCRIPTS / "values.yaml")))


@pytest.fixture(scope="session")
def images(request: pytest.FixtureRequest, kube: Kube) -> dict[str, float]:
    """Our images are in the cluster; their sizes in MB where they were built for this run."""
    if request.config.getoption("--kubeconfig") is not None:
        return {}
    local: LocalCluster = request.getfixturevalue("local_cluster")
    sizes = build_images()
    local.load(sizes)
    return sizes


@pytest.fixture(scope="session")
def crds(kube: Kube) -> None:
    """The CRDs of the chart, known to the API server and to discovery."""
    kube.kubectl("apply", "--server-side", "--filename", str(CHART / "files" / "crds"))
    eventually(lambda: kube.kubectl("explain", "erep") and kube.kubectl("explain", "infsvc"))


@pytest.fixture(scope="module")
def release(kube: Kube, images: dict[str, float]) -> Iterator[Release]:
    """The chart as it installs by default, serving every namespace; gone after the module."""
    installed = Release(kube, "roundhouse", "roundhouse")
    installed.install()
    yield installed
    installed.uninstall()
