import os
from pathlib import Path

import pytest
from roundhouse_local.errors import StartError
from roundhouse_local.supervisor.home import LONGEST, control_socket, locked_home
from roundhouse_local.supervisor.settings import home_folder


def test_second_run_in_the_same_folder_is_told_who_has_it(tmp_path: Path) -> None:
    with (
        locked_home(tmp_path / "home"),
        pytest.raises(StartError, match=rf"another run is up in .*home \(process {os.getpid()}\)"),
        locked_home(tmp_path / "home"),
    ):
        pass


def test_folder_is_free_again_after_a_run(tmp_path: Path) -> None:
    for _ in range(2):
        with locked_home(tmp_path / "home"):
            pass


def test_leavings_of_the_last_run_go_but_its_logs_stay(tmp_path: Path) -> None:
    with locked_home(tmp_path) as home:
        (home.logs / "x.log").write_text("old")
        (home.root / "pods").mkdir()
        home.control.touch()
    with locked_home(tmp_path) as home:
        assert (tmp_path / "logs.old" / "x.log").read_text() == "old"
        assert list(home.logs.iterdir()) == []
        assert not (home.root / "pods").exists()
        assert not home.control.exists()


def test_long_folder_is_used_through_a_short_link(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 60)
    with locked_home(long) as home:
        assert len(os.fsencode(home.root)) <= LONGEST
        assert home.root.resolve() == long
        link = home.root
    assert not link.exists()


def test_short_link_of_a_killed_run_goes_with_the_next_one(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 60)
    with locked_home(long) as home:
        stale = home.root.parent
        kept = os.readlink(long / "short")
    stale.mkdir()
    (long / "short").symlink_to(kept)
    with locked_home(long) as home:
        assert not stale.exists()
        assert home.root.parent != stale


def test_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(StartError, match=r"cannot use .*file/home: Not a directory; choose another folder with --home"),
        locked_home(tmp_path / "file" / "home"),
    ):
        pass


def test_full_disk_is_told(tmp_path: Path) -> None:
    with (
        pytest.raises(StartError, match=r"disk full: 3 MiB left for .*; free some space or choose another folder"),
        locked_home(tmp_path, free_bytes=lambda _: 3 << 20),
    ):
        pass


def test_failed_start_frees_the_folder(tmp_path: Path) -> None:
    with pytest.raises(StartError), locked_home(tmp_path, free_bytes=lambda _: 0):
        pass
    with locked_home(tmp_path):
        pass


def test_home_comes_from_flag_then_environment_then_cache() -> None:
    assert home_folder("/x", {"ROUNDHOUSE_HOME": "/y"}) == Path("/x")
    assert home_folder(None, {"ROUNDHOUSE_HOME": "/y"}) == Path("/y")
    assert home_folder(None, {"HOME": "/h"}) == Path("/h/.cache/roundhouse/local")
    assert home_folder(None, {"HOME": "/h", "XDG_CACHE_HOME": "/c"}) == Path("/c/roundhouse/local")


def test_control_socket_of_a_long_folder_is_found_by_a_relative_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 90)
    long.mkdir()
    monkeypatch.chdir(long)
    assert control_socket(long) == Path("control.sock")
