"""Compiles the gateway's hot path to machine code, in place, with mypyc; without a C compiler Python runs it as it is.

usage: python gateway/compile.py

Each module's ``.so`` lies beside its source (git ignores it) and is what an import finds first; `--clean` takes them
away again. A module that changed is stale until this has run again, so it runs with each `make install`.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("gateway", "kv_index", "engines")
MODULES = {
    "gateway/roundhouse_gateway": (
        "answer", "bookings", "breaker", "client_connection", "client_request", "counts", "data_plane", "exchange",
        "fleet", "heads", "journal", "json_spans", "pick", "prompt", "replica", "replies", "request_body",
        "retry_budget", "router", "sockets", "stream_relay", "tokens", "upstream",
    ),
    "kv_index/roundhouse_kv": (
        "books", "books_wire", "expected", "keys", "mirror", "plan", "pod_books", "table", "view",
    ),
    "engines/roundhouse_engines": ("openai_sse", "usage"),
}  # fmt: skip

_SETUP = """
import sys
from mypyc.build import mypycify
from setuptools import setup
modules = mypycify(sys.argv.pop(1).split(","), opt_level="2", debug_level="0", group_name="roundhouse_native")
setup(name="roundhouse-native", packages=[], ext_modules=modules, script_args=["build_ext", "--inplace"])
"""
_CONFIG = "[mypy]\nignore_missing_imports = True\n"


def main() -> int:
    clean()
    if "--clean" in sys.argv:
        return 0
    missing = _missing()
    if missing:
        sys.stdout.write(f"not compiled, {missing}: the gateway runs as Python, which takes twice the CPU\n")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        _build(Path(folder))
    return 0


def clean() -> None:
    for part in FOLDERS:
        for made in (ROOT / part).rglob("*.so"):
            made.unlink()


def _build(folder: Path) -> None:
    sources: list[str] = []
    for package, names in MODULES.items():
        part, name = package.split("/")
        shutil.copytree(ROOT / part / name, folder / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        sources += [f"{name}/{module}.py" for module in names]
    (folder / "mypy.ini").write_text(_CONFIG)
    (folder / "setup.py").write_text(_SETUP)
    argv = [sys.executable, "setup.py", ",".join(["--config-file=mypy.ini", *sources])]
    done = subprocess.run(argv, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        sys.exit(f"gateway/compile.py: mypyc or the C compiler failed:\n{done.stdout[-4000:]}")
    for made in folder.glob("*.so"):
        shutil.copy2(made, ROOT / "gateway")  # the code of all modules
    for package in MODULES:
        part, name = package.split("/")
        for made in (folder / name).glob("*.so"):
            shutil.copy2(made, ROOT / part / name)


def _missing() -> str:
    """What a build needs and does not find; empty when all is there."""
    if shutil.which(os.environ.get("CC", "cc")) is None:
        return "no C compiler"
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        return "no Python.h"
    return "" if find_spec("mypyc") and find_spec("setuptools") else "no mypyc"


if __name__ == "__main__":
    sys.exit(main())
