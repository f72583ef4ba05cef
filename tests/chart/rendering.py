"""The chart as Helm renders it."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "roundhouse"
VALUES_FILES = sorted((CHART / "ci").glob("*-values.yaml"))

Obj = dict[str, Any]


class ChartRefused(Exception):
    """Helm's own words on why it does not render."""


class StrictLoader(yaml.CSafeLoader):
    """Refuses a key that stands twice in a mapping, of which YAML parsers take the last in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = {key for key in keys if keys.count(key) > 1}
        if twice:
            raise yaml.YAMLError(f"{', '.join(map(str, twice))} given twice at {node.start_mark}")
        return super().construct_mapping(node, deep)


def helm_path() -> str:
    cache = Path(os.environ.get("RH_CACHE") or Path.home() / ".cache" / "roundhouse")
    found = shutil.which("helm", path=f"{cache / 'tools' / 'bin'}:{os.environ['PATH']}")
    if not found:
        raise FileNotFoundError("no helm here: run `make tools`")
    return found


def helm(*args: str) -> str:
    done = subprocess.run([helm_path(), *args], capture_output=True, text=True)
    if done.returncode != 0:
        raise ChartRefused(done.stdout + done.stderr)
    return done.stdout


def render_text(*options: str, release: str = "rh", namespace: str = "serving") -> str:
    return helm("template", release, str(CHART), "--namespace", namespace, *options)


def render(*options: str, release: str = "rh", namespace: str = "serving") -> list[Obj]:
    documents = yaml.load_all(render_text(*options, release=release, namespace=namespace), StrictLoader)
    return [document for document in documents if document]


def of_kind(objects: list[Obj], *kinds: str) -> list[Obj]:
    return [o for o in objects if o["kind"] in kinds]


def workloads(objects: list[Obj]) -> list[Obj]:
    return of_kind(objects, "Deployment", "StatefulSet")


def find(objects: list[Obj], kind: str, name: str) -> Obj:
    return next(o for o in objects if o["kind"] == kind and o["metadata"]["name"] == name)


def args_of(deployment: Obj) -> list[str]:
    args: list[str] = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    return args
