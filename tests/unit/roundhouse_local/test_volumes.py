from pathlib import Path

import pytest
from roundhouse_local.errors import MissingSource
from roundhouse_local.kubelet.sources import Sources
from roundhouse_local.kubelet.volumes import make_volumes
from roundhouse_operator.cluster import Obj

SOURCES = Sources("ns", {("secret", "s"): {"k": b"v"}, ("configmap", "m"): {"a": b"1", "b": b"2"}})


def make(folder: Path, **source: Obj) -> Path:
    pod = {"spec": {"volumes": [{"name": "v", **source}]}}
    return make_volumes(pod, folder / "volumes", SOURCES)["v"]


def test_host_path_is_made_only_when_asked_for(tmp_path: Path) -> None:
    wanted = tmp_path / "deep" / "models"
    assert make(tmp_path, hostPath={"path": str(wanted), "type": "DirectoryOrCreate"}).is_dir()
    with pytest.raises(MissingSource, match="is not a Directory"):
        make(tmp_path, hostPath={"path": str(tmp_path / "none"), "type": "Directory"})


def test_host_path_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(MissingSource, match="file/models: Not a directory"):
        make(tmp_path, hostPath={"path": str(tmp_path / "file" / "models"), "type": "DirectoryOrCreate"})


def test_secret_files_are_private(tmp_path: Path) -> None:
    folder = make(tmp_path, secret={"secretName": "s"})
    assert (folder / "k").read_bytes() == b"v"
    assert (folder / "k").stat().st_mode & 0o777 == 0o600


def test_chosen_items_go_where_they_are_told(tmp_path: Path) -> None:
    folder = make(tmp_path, configMap={"name": "m", "items": [{"key": "b", "path": "x/y"}], "defaultMode": 0o400})
    assert [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()] == ["x/y"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"secret": {"secretName": "none"}}, 'secret "none" not found'),
        ({"configMap": {"name": "none"}}, 'configmap "none" not found'),
        ({"configMap": {"name": "m", "items": [{"key": "c", "path": "c"}]}}, "non-existent key: c"),
        ({"configMap": {"name": "m", "items": [{"key": "a", "path": "../out"}]}}, "leads out of the volume"),
        ({"nfs": {"server": "x"}}, "nfs is not supported"),
        ({}, "no source"),
    ],
)
def test_volume_that_cannot_be_made_is_told(tmp_path: Path, source: Obj, message: str) -> None:
    with pytest.raises(MissingSource, match=message):
        make(tmp_path, **source)


def test_optional_source_that_is_missing_is_an_empty_folder(tmp_path: Path) -> None:
    assert list(make(tmp_path, secret={"secretName": "none", "optional": True}).iterdir()) == []


def test_empty_dir_keeps_what_it_holds(tmp_path: Path) -> None:
    (make(tmp_path, emptyDir={}) / "file").write_text("x")
    assert (make(tmp_path, emptyDir={}) / "file").read_text() == "x"
