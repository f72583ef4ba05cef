import io
from pathlib import Path

import pytest
from roundhouse_local.cli.up import check_manifests
from roundhouse_local.errors import UserError
from roundhouse_local.manifests import load_manifests

SERVICE = """\
apiVersion: roundhouse.dev/v1alpha1
kind: InferenceService
metadata: {name: a}
spec: {model: "hf://org/name"}
"""


def load(tmp_path: Path, text: str, namespace: str = "default") -> list[dict[str, object]]:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    return [manifest.obj for manifest in load_manifests([str(path)], namespace)]


def test_objects_get_the_namespace_they_do_not_name(tmp_path: Path) -> None:
    text = f"{SERVICE}---\n{SERVICE.replace('name: a', 'name: b, namespace: own')}"
    found = load(tmp_path, text, "mine")
    assert [obj["metadata"]["namespace"] for obj in found] == ["mine", "own"]  # type: ignore[index]


def test_empty_documents_are_passed_over(tmp_path: Path) -> None:
    assert len(load(tmp_path, f"---\n---\n{SERVICE}---\n# nothing\n")) == 1


def test_folder_stands_for_its_yaml_files(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text(SERVICE)
    (tmp_path / "a.yml").write_text(SERVICE.replace("name: a", "name: b"))
    (tmp_path / "c.txt").write_text("no")
    assert [manifest.name for manifest in load_manifests([str(tmp_path)])] == ["b", "a"]


def test_dash_is_standard_input() -> None:
    assert load_manifests(["-"], stdin=io.StringIO(SERVICE))[0].source == "standard input"


def test_date_stays_a_string(tmp_path: Path) -> None:
    text = SERVICE.replace("{name: a}", "{name: a, labels: {day: 2024-01-01}}")
    assert load(tmp_path, text)[0]["metadata"]["labels"] == {"day": "2024-01-01"}  # type: ignore[index]


def test_anchors_and_merge_keys_work(tmp_path: Path) -> None:
    text = SERVICE.replace('spec: {model: "hf://org/name"}', "x: &x {model: hf://org/name}\nspec:\n  <<: *x")
    assert load(tmp_path, text)[0]["spec"] == {"model": "hf://org/name"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: b: c", "x.yaml, line 1, column 5: not valid YAML: mapping values are not allowed here"),
        ("a: [1, 2", "x.yaml, line 1, column 9: not valid YAML"),
        ("a: 1\na: 2", 'line 2, column 1: not valid YAML: key "a" stands twice'),
        ("a: !!python/object:os.system {}", "not valid YAML"),
        ("a: \x00", "not valid YAML"),
        ("", "x.yaml: holds no object"),
        ("# only a comment", "holds no object"),
        ("just text", "x.yaml: a str, not an object"),
        ("- 1", "a list, not an object"),
        ("a: !!binary aGk=", "x.yaml: a: bytes is not a JSON value; put it in quotes"),
        (f"{SERVICE}---\na: {{b: !!set {{c}}}}", "x.yaml, document 2: a.b: set is not a JSON value"),
        ("kind: InferenceService", "apiVersion is missing; an InferenceService begins with apiVersion: roundhouse.dev"),
        ("apiVersion: v1", "kind is missing"),
        ("apiVersion: apps/v1\nkind: Deployment", "kind Deployment is not served by the local run; these are: Inf"),
        ("apiVersion: v1\nkind: InferenceService", "must be roundhouse.dev/v1alpha1"),
        ("apiVersion: v1\nkind: Secret", "metadata.name is missing"),
        ("apiVersion: v1\nkind: Secret\nmetadata: {name: 1}", "metadata.name is missing"),
        (f"{SERVICE}---\n{SERVICE}", 'document 2: InferenceService "a" stands in .*document 1 too'),
    ],
)
def test_bad_file_is_told_with_place_and_fix(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message.replace("[", r"\[")):
        load(tmp_path, text)


def test_bytes_that_are_no_text_are_told(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_bytes(b"a: \xff\xfe\xfd")
    with pytest.raises(UserError, match=r"x\.yaml: not valid YAML"):
        load_manifests([str(tmp_path / "x.yaml")])


def test_missing_file_and_empty_folder_are_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.yaml: no such file"):
        load_manifests([str(tmp_path / "none.yaml")])
    with pytest.raises(UserError, match=r"holds no \.yaml file"):
        load_manifests([str(tmp_path)])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("model:", "modle:"), r'x\.yaml: InferenceService.*unknown field "spec\.modle"; did you mean model\?'),
        (("hf://org/name", "org/name"), r"spec\.model must be hf://ORG/NAME"),
        (
            ('{model: "hf://org/name"}', "{model: hf://a/b, replicas: two}"),
            r"spec\.replicas in body must be of type int",
        ),
        (("spec:", "sepc:"), r'unknown field "sepc"; did you mean spec\?'),
    ],
)
def test_invalid_object_is_told_with_file_field_and_fix(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(SERVICE.replace(*change))
    with pytest.raises(UserError, match=message):
        check_manifests(load_manifests([str(path)]))
