from pathlib import Path

import pytest
from roundhouse_kv.catalogue_file import load_catalogue, save_catalogue
from roundhouse_kv.catalogue_store import Catalogue
from roundhouse_kv.records import ServiceEntry

CATALOGUE = Catalogue(3, 9, {"ns/ä": ServiceEntry(namespace="ns", name="ä", uid="u", served_names=("ä", "x"))})


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "new" / "catalogue.json"
    save_catalogue(path, CATALOGUE)
    save_catalogue(path, CATALOGUE)
    assert load_catalogue(path) == CATALOGUE
    assert [each.name for each in path.parent.iterdir()] == ["catalogue.json"]


def test_without_a_file_there_is_no_catalogue(tmp_path: Path) -> None:
    assert load_catalogue(tmp_path / "none") is None


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"v": "2"}', b'{"v":"1","term":"x","version":"1"}', b"\xff"])
def test_a_damaged_file_is_no_catalogue(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "catalogue.json"
    path.write_bytes(data)
    assert load_catalogue(path) is None
    assert load_catalogue(tmp_path) is None


def test_what_cannot_be_saved_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("x")
    save_catalogue(tmp_path / "file" / "catalogue.json", CATALOGUE)
    assert "catalogue_not_saved" in caplog.text
