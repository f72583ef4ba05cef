"""What is compiled is what stands in the sources."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


def compiler() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gateway_compile", ROOT / "gateway" / "compile.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_module_that_is_compiled_exists() -> None:
    for package, names in compiler().MODULES.items():
        for name in names:
            assert (ROOT / package / f"{name}.py").is_file()


def test_nothing_that_runs_is_older_than_its_source() -> None:
    for package, names in compiler().MODULES.items():
        for name in names:
            source = ROOT / package / f"{name}.py"
            stale = [
                so.name for so in source.parent.glob(f"{name}.*.so") if so.stat().st_mtime < source.stat().st_mtime
            ]
            assert not stale, "run `make install` (or `python gateway/compile.py --clean`)"


def test_without_a_compiler_the_old_code_goes_and_python_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = compiler()
    old = tmp_path / "gateway" / "pick.cpython-311.so"
    old.parent.mkdir()
    old.write_bytes(b"")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["compile.py"])
    monkeypatch.setenv("CC", "no-such-compiler")
    assert module.main() == 0
    assert "no C compiler" in capsys.readouterr().out
    assert not old.exists()
