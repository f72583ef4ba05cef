"""`roundhouse get`, `apply`, `delete`, `explain`, `status`, `restart-operator`: questions to the supervisor."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import yaml

from roundhouse_local.errors import UserError
from roundhouse_local.manifests import load_manifests

Ask = Callable[..., Any]


def run_get(options: argparse.Namespace, ask: Ask) -> int:
    namespace = None if options.all_namespaces else options.namespace
    wide = options.output == "wide"
    answer = ask(verb="get", kind=options.kind, name=options.name, namespace=namespace, wide=wide)
    objects, lines = answer["objects"], answer["lines"]
    match options.output:
        case "json" | "yaml":
            whole = objects[0] if options.name else {"apiVersion": "v1", "kind": "List", "items": objects}
            text = json.dumps(whole, indent=2) if options.output == "json" else yaml.safe_dump(whole, sort_keys=False)
            print(text.rstrip())
        case "name":
            for obj in objects:
                print(f"{answer['kind'].lower()}/{obj['metadata']['name']}")
        case _ if lines:
            print("\n".join(lines))
        case _:
            where = "" if options.all_namespaces else f" in namespace {options.namespace}"
            print(f"No {answer['kind']} found{where}.", file=sys.stderr)
    return 0


def run_apply(options: argparse.Namespace, ask: Ask) -> int:
    manifests = load_manifests(options.filename, options.namespace)
    objects = [{"source": manifest.source, "object": manifest.obj} for manifest in manifests]
    return _tell(ask(verb="apply", objects=objects))


def run_delete(options: argparse.Namespace, ask: Ask) -> int:
    manifests = load_manifests(options.filename, options.namespace)
    targets = [{"kind": m.kind.kind, "namespace": m.namespace, "name": m.name} for m in manifests]
    targets += _named(options.names, options.namespace)
    if not targets:
        raise UserError("nothing to delete: give -f FILE or a NAME")
    return _tell(ask(verb="delete", targets=targets))


def run_explain(options: argparse.Namespace, ask: Ask) -> int:
    print(ask(verb="explain", what=options.what, namespace=options.namespace)["text"])
    return 0


def run_status(options: argparse.Namespace, ask: Ask) -> int:
    print(json.dumps(ask(verb="status"), indent=2))
    return 0


def run_restart_operator(options: argparse.Namespace, ask: Ask) -> int:
    ask(verb="restart-operator")
    print("operator restarted")
    return 0


def _named(names: Sequence[str], namespace: str) -> list[dict[str, str]]:
    """``NAME``, ``KIND NAME …`` or ``KIND/NAME …``."""
    if len(names) > 1 and "/" not in names[0]:
        return [{"kind": names[0], "namespace": namespace, "name": name} for name in names[1:]]
    pairs = [name.split("/", 1) if "/" in name else ("infsvc", name) for name in names]
    return [{"kind": kind, "namespace": namespace, "name": name} for kind, name in pairs]


def _tell(results: Sequence[dict[str, str]]) -> int:
    for result in results:
        if "line" in result:
            print(result["line"])
        else:
            print(f"roundhouse: {result['error']}", file=sys.stderr)
    return 1 if any("error" in result for result in results) else 0
