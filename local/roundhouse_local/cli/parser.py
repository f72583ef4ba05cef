"""Commands and flags."""

import argparse
from pathlib import Path
from typing import TypeAlias

DESCRIPTION = "Serve LLMs with many engine replicas behind one KV-aware endpoint, without a cluster."

Parser: TypeAlias = argparse.ArgumentParser
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def make_parser() -> Parser:
    parser = argparse.ArgumentParser(prog="roundhouse", description=DESCRIPTION)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_up(commands)
    _add_get(commands)
    _add_apply(commands)
    _add_delete(commands)
    _add_logs(commands)
    explain = _add(commands, "explain", "tell why a service, replica or request is as it is")
    explain.add_argument("what", metavar="NAME|REQUEST-ID", help="InferenceService, EngineReplica or request id")
    _namespace(explain)
    _add(commands, "status", "tell what this run consists of, as JSON")
    _add(commands, "restart-operator", "end the operator and begin it anew, all of its state lost")
    _add_keys(commands)
    render = commands.add_parser("render-crds", help="write the CustomResourceDefinitions as YAML")
    render.add_argument("folder", type=Path, metavar="DIR")
    return parser


def _add(commands: Commands, name: str, text: str) -> Parser:
    parser = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    home = "folder of the run (default $ROUNDHOUSE_HOME or ~/.cache/roundhouse/local)"
    parser.add_argument("--home", metavar="DIR", help=home)
    return parser


def _namespace(parser: Parser) -> None:
    parser.add_argument("-n", "--namespace", default="default", metavar="NAMESPACE")


def _files(parser: Parser, *, required: bool = False) -> None:
    parser.add_argument(
        "-f", "--filename", action="append", default=None if required else [], required=required, metavar="FILE",
        help="YAML file, folder of them, or - for standard input; may be repeated",
    )  # fmt: skip


def _add_up(commands: Commands) -> None:
    up = _add(commands, "up", "run everything on this machine until Ctrl-C")
    _files(up)
    _namespace(up)
    add = up.add_argument
    add("--host", default="127.0.0.1", help="address of the gateways (default %(default)s)")
    add("--port", type=int, default=8080, help="of the first gateway (default %(default)s); each next one has 100 more")
    add("--gateways", type=int, default=2, metavar="N", help="gateway processes (default %(default)s)")
    add(
        "--api-keys",
        type=Path,
        metavar="DIR",
        help="serve only clients with a key (see `keys create --dir`)",
    )
    add("--gpus", type=int, default=0, metavar="N", help="GPUs that this machine offers (default %(default)s)")
    add("--gpu-type", default="", metavar="PRODUCT", help="what resources.gpuType is compared with")
    add("--models", type=Path, metavar="DIR", help="folder for models (default ~/.cache/roundhouse/models)")
    add("--stop-timeout", type=float, default=10.0, metavar="S", help="for replicas to stop (default %(default)g)")
    add("-v", "--verbose", action="store_true", help="also print the supervisor's log")


def _add_keys(commands: Commands) -> None:
    keys = commands.add_parser("keys", help="make API keys", description="Make API keys.")
    actions = keys.add_subparsers(dest="action", required=True, metavar="ACTION")
    text = "make a key for one client; with --dir it goes to standard output, else a Secret with its hash does"
    create = actions.add_parser("create", help=text, description=text[0].upper() + text[1:] + ".")
    create.add_argument("name", metavar="NAME", help="of the client")
    create.add_argument("--dir", type=Path, metavar="DIR", help="keep the hash in this folder, for up --api-keys DIR")
    create.add_argument("--secret", default="roundhouse-keys", metavar="NAME", help="of the Secret (%(default)s)")
    create.add_argument("-n", "--namespace", default="", metavar="NAMESPACE", help="of the Secret: the gateway's")


def _add_get(commands: Commands) -> None:
    get = _add(commands, "get", "list objects: infsvc (the default), erep, pods, secrets, configmaps, nodes")
    get.add_argument("kind", nargs="?", default="infsvc", metavar="KIND")
    get.add_argument("name", nargs="?", metavar="NAME")
    _namespace(get)
    get.add_argument("-A", "--all-namespaces", action="store_true")
    get.add_argument("-o", "--output", choices=("wide", "yaml", "json", "name"), help="default: a table")


def _add_apply(commands: Commands) -> None:
    apply = _add(commands, "apply", "create or change objects")
    _files(apply, required=True)
    _namespace(apply)


def _add_delete(commands: Commands) -> None:
    delete = _add(commands, "delete", "delete objects by file or by name")
    delete.add_argument("names", nargs="*", metavar="[KIND] NAME", help="an InferenceService unless KIND is given")
    _files(delete)
    _namespace(delete)


def _add_logs(commands: Commands) -> None:
    logs = _add(commands, "logs", "print what a replica writes")
    logs.add_argument("replica", metavar="REPLICA", help="name of an EngineReplica, as in `roundhouse get erep`")
    logs.add_argument("-c", "--container", help="engine (the default), agent or fetch")
    logs.add_argument("-p", "--previous", action="store_true", help="of the life before the last restart")
    logs.add_argument("-f", "--follow", action="store_true", help="go on until Ctrl-C")
    logs.add_argument("--tail", type=int, metavar="N", help="only the last N lines")
    _namespace(logs)
