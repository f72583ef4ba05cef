import errno
import json
import threading
from pathlib import Path

import pytest
from roundhouse_agent.errors import NoSpace
from roundhouse_agent.models.cache import MARKER, ModelFolder, full_disk_explained


def folder(tmp_path: Path) -> ModelFolder:
    return ModelFolder(tmp_path, tmp_path / "demo")


def build(place: ModelFolder, text: str = "weights") -> Path:
    built = place.partial / "built"
    (built / "sub").mkdir(parents=True)
    (built / "model.safetensors").write_text(text)
    (built / "sub" / "more.json").write_text("{}")
    return built


def test_a_published_folder_is_complete_and_the_partial_one_is_gone(tmp_path: Path) -> None:
    place = folder(tmp_path)
    assert not place.complete("wheel://demo")
    place.publish(build(place), "wheel://demo")
    assert place.complete("wheel://demo")
    assert not place.partial.exists()
    assert json.loads((place.path / MARKER).read_text())["files"] == {"model.safetensors": 7, "sub/more.json": 2}


def test_another_source_is_not_complete_and_replaces_it(tmp_path: Path) -> None:
    place = folder(tmp_path)
    place.publish(build(place), "file:///a 1")
    assert not place.complete("file:///a 2")
    place.publish(build(place, "other weights"), "file:///a 2")
    assert place.complete("file:///a 2")
    assert (place.path / "model.safetensors").read_text() == "other weights"


def test_a_folder_that_lost_a_file_or_was_cut_is_not_complete(tmp_path: Path) -> None:
    place = folder(tmp_path)
    place.publish(build(place), "x")
    (place.path / "model.safetensors").write_text("weigh")
    assert not place.complete("x")
    (place.path / "model.safetensors").unlink()
    assert not place.complete("x")


@pytest.mark.parametrize("marker", ["", "[]", "{}", '{"source": "x", "files": []}'])
def test_a_broken_marker_is_not_complete(tmp_path: Path, marker: str) -> None:
    place = folder(tmp_path)
    place.publish(build(place), "x")
    (place.path / MARKER).write_text(marker)
    assert not place.complete("x")


def test_the_lock_lets_one_in_at_a_time(tmp_path: Path) -> None:
    inside, order = threading.Event(), []

    def second() -> None:
        with folder(tmp_path).locked():
            order.append("second")

    with folder(tmp_path).locked():
        thread = threading.Thread(target=second)
        thread.start()
        inside.wait(0.05)
        order.append("first")
    thread.join(5)
    assert order == ["first", "second"]


def test_too_little_space_names_both_figures(tmp_path: Path) -> None:
    with pytest.raises(NoSpace, match=r"needs 1\d{18} bytes and has \d+ bytes free"):
        folder(tmp_path).need(10**18)


def test_a_disk_that_fills_up_is_explained(tmp_path: Path) -> None:
    with pytest.raises(NoSpace, match="ran out of space"), full_disk_explained(tmp_path):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_other_errors_pass_through(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), full_disk_explained(tmp_path):
        raise PermissionError(errno.EACCES, "no")
