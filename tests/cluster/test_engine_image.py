"""The bundled engine's image with a real model from a volume of the node, and no network beyond the cluster."""

import os
import sys
from collections.abc import Iterator

import pytest

from tests.cluster.kube import CACHE, ROOT, Kube, run
from tests.cluster.local_cluster import OUTSIDE, SCRIPTS, LocalCluster, build_images
from tests.cluster.release import Release

EXAMPLE = ROOT / "examples" / "smollm2.yaml"
MODELS = CACHE / "models"


@pytest.fixture(scope="module")
def service(kube: Kube, local_cluster: LocalCluster, release: Release) -> Iterator[str]:
    local_cluster.load(build_images("engine"))
    # What a node has that served the model before.
    run("nsenter", f"--net={OUTSIDE}", sys.executable, SCRIPTS / "models.py", EXAMPLE, MODELS, timeout=300)
    release.install("--set", f"engines.modelCacheHostPath={MODELS}")
    kube.kubectl("apply", "--filename", str(EXAMPLE))
    kube.kubectl("wait", "infsvc/smollm2", "--for=condition=Ready", "--timeout=240s", timeout=270)
    yield "smollm2"
    kube.delete("infsvc", "smollm2")


@pytest.mark.slow
def test_smollm2_answers_and_remembers_its_prompt(release: Release, service: str) -> None:
    story = "Once upon a time there was a locomotive that knew every stall of its roundhouse. " * 16
    first, second = (release.chat(service, story, temperature=0) for _ in range(2))
    assert (first.status, second.status) == (200, 200)
    assert first.body["choices"][0]["message"]["content"] == second.body["choices"][0]["message"]["content"]
    assert second.body["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_the_model_is_read_from_the_node(kube: Kube, service: str) -> None:
    pod = kube.get("pods", labels=f"roundhouse.dev/service={service}")[0]
    (models,) = (v for v in pod["spec"]["volumes"] if v["name"] == "models")
    assert models["hostPath"]["path"] == str(MODELS)
    assert os.listdir(MODELS)
