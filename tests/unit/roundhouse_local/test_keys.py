"""`roundhouse keys create`: the key is told once, its hash is kept."""

import base64
import sys
from pathlib import Path

import pytest
import yaml
from roundhouse_gateway.api_keys import hash_line
from roundhouse_local.__main__ import main


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["roundhouse", "keys", "create", *words])
    return main()


def test_a_secret_with_the_hash_goes_out_and_the_key_is_told_aside(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "alice", "-n", "serving") == 0
    out, err = capsys.readouterr()
    secret = yaml.safe_load(out)
    key = err.rsplit(" ", 1)[1].strip()
    assert len(key) >= 40
    assert secret["metadata"] == {"name": "roundhouse-keys", "namespace": "serving"}
    assert base64.b64decode(secret["data"]["alice"]).decode() == hash_line(key.encode())
    assert key not in out


def test_in_a_folder_the_hash_is_kept_and_the_key_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(monkeypatch, "alice", "--dir", str(tmp_path / "keys")) == 0
    key = capsys.readouterr().out.strip()
    assert (tmp_path / "keys" / "alice").read_text().strip() == hash_line(key.encode())


def test_a_name_is_not_given_twice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert run(monkeypatch, "alice", "--dir", str(tmp_path)) == 0
    assert run(monkeypatch, "alice", "--dir", str(tmp_path)) == 2


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "..", "-x"[1:] + "/", "ü"])
def test_a_name_that_no_secret_can_have_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    assert run(monkeypatch, name, "--dir", str(tmp_path)) == 2
    assert "key name" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
