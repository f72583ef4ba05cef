"""The command line."""

import sys
from pathlib import Path

import pytest
from roundhouse_operator.__main__ import main


def test_render_crds_writes_one_file_per_resource(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["roundhouse-operator", "render-crds", str(tmp_path / "new")])
    main()
    names = sorted(path.name for path in (tmp_path / "new").iterdir())
    assert names == ["enginereplicas.roundhouse.dev.yaml", "inferenceservices.roundhouse.dev.yaml"]


def test_an_unknown_command_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["roundhouse-operator", "dance"])
    with pytest.raises(SystemExit):
        main()
