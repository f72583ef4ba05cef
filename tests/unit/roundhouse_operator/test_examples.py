"""What people copy is valid and can be planned."""

import copy
from pathlib import Path

import pytest
import yaml
from roundhouse_operator.api.parse import service_complaints
from roundhouse_operator.api.service import InferenceServiceSpec
from roundhouse_operator.cluster import SECRET

from tests.unit.roundhouse_operator.world import World

EXAMPLES = {
    path.stem: yaml.safe_load(path.read_text())
    for path in sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))
}


def test_there_are_examples() -> None:
    main = {"smollm2", "shortest", "sim", "vllm", "scaling", "own-cache", "pod-template", "engine-version"}
    assert EXAMPLES.keys() >= main


def test_every_field_of_the_first_level_is_shown_in_an_example() -> None:
    shown = {name for obj in EXAMPLES.values() for name in obj["spec"]}
    assert shown == {field.alias for field in InferenceServiceSpec.model_fields.values()}


@pytest.mark.parametrize("name", EXAMPLES)
async def test_an_example_is_accepted_and_gets_its_replicas(name: str) -> None:
    obj = copy.deepcopy(EXAMPLES[name])
    assert service_complaints(obj) == []
    world = World()
    obj["metadata"]["namespace"] = "default"
    await world.apply(obj)
    key = f"default/{obj['metadata']['name']}"
    if "modelSecret" in obj["spec"]:
        await world.cluster.create(SECRET, {"metadata": {"name": "hugging-face", "namespace": "default"}})
    await world.reconcile(key)
    assert (await world.condition("Accepted", key))["status"] == "True"
    scaling = obj["spec"].get("scaling", {})
    assert len(await world.pods()) == obj["spec"].get("replicas", scaling.get("min", 1))
