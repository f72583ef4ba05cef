"""The images: small, complete, run by nobody in particular."""

import pytest

from tests.cluster.kube import Kube, Obj, eventually
from tests.cluster.local_cluster import LocalCluster

PACKAGES = {
    "operator": "roundhouse_operator",
    "gateway": "roundhouse_gateway",
    "agent": "roundhouse_agent",
    "sim": "roundhouse_sim",
}
# Every module, so that a dependency that only a rare path needs is missed here and not there.
IMPORT_ALL = """
import importlib, os, pkgutil, sys
package = importlib.import_module(sys.argv[1])
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    importlib.import_module(module.name)
print("uid", os.getuid())
"""


def pod(image: str, package: str) -> Obj:
    hardened = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    container = {
        "name": "c",
        "image": f"localhost/roundhouse-{image}:dev",
        "command": ["python", "-c", IMPORT_ALL, package],
        "securityContext": {**hardened, "runAsNonRoot": True},
    }
    spec = {"restartPolicy": "Never", "automountServiceAccountToken": False, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"imports-{image}"}, "spec": spec}


@pytest.mark.usefixtures("images")
@pytest.mark.parametrize("image", PACKAGES)
def test_every_module_imports_as_nobody_on_a_read_only_root(
    kube: Kube, local_cluster: LocalCluster, image: str
) -> None:
    name = f"imports-{image}"
    kube.create(pod(image, PACKAGES[image]))
    phase = eventually(lambda: _ended(kube, name), within=60)
    log = kube.kubectl("logs", name)
    kube.delete("pod", name)
    assert (phase, log.split()) == ("Succeeded", ["uid", "65532"]), log


def _ended(kube: Kube, name: str) -> str:
    phase: str = kube.get("pod", name)["status"].get("phase", "")
    return phase if phase in ("Succeeded", "Failed") else ""


@pytest.mark.usefixtures("local_cluster")
@pytest.mark.parametrize("image", ["operator", "gateway", "agent"])
def test_image_is_small(images: dict[str, float], image: str) -> None:
    assert images[image] <= 250
