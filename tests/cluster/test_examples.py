"""Everything under examples/ is taken by the API server and gets the replicas that it asks for."""

from pathlib import Path

import pytest
import yaml

from tests.cluster.kube import ROOT, Kube, eventually
from tests.cluster.release import Release

EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(kube: Kube, release: Release, path: Path) -> None:
    service = yaml.safe_load(path.read_text())
    name, spec = service["metadata"]["name"], service["spec"]
    replicas = spec.get("replicas") or spec.get("scaling", {}).get("min", 1)
    if "modelSecret" in spec:
        kube.kubectl("create", "secret", "generic", spec["modelSecret"]["name"], "--from-literal=token=x")
    kube.kubectl("apply", "--server-side", "--filename", str(path))
    try:
        eventually(lambda: len(kube.get("pods", labels=f"roundhouse.dev/service={name}")) == replicas)
        assert eventually(lambda: kube.condition("infsvc", name, "Accepted"))["status"] == "True"
        for condition in kube.get("infsvc", name)["status"]["conditions"]:
            assert condition["reason"]
    finally:
        kube.delete("infsvc", name)
        if "modelSecret" in spec:
            kube.delete("secret", spec["modelSecret"]["name"])
