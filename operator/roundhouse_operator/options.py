"""The command line of ``roundhouse-operator``, turned into settings."""

import argparse
import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roundhouse_engines.launch import ENGINE_KINDS

from roundhouse_operator.errors import BadSettings
from roundhouse_operator.leader import Election
from roundhouse_operator.settings import Settings


@dataclass(frozen=True, slots=True)
class Options:
    """``settings`` without the Redis password when it is to be read from ``redis_secret`` in the own namespace."""

    settings: Settings
    election: Election
    redis_secret: str
    kubeconfig: str | None
    port: int
    log_level: str


def parse_options(argv: Sequence[str], env: Mapping[str, str]) -> Options:
    """Raises `BadSettings`; argparse itself exits with 2 on an unknown option."""
    given = _parser().parse_args(argv)
    images = dict(_engine_image(text) for text in given.engine_image)
    if given.agent_image:
        images["agent"] = given.agent_image
    namespace = env.get("POD_NAMESPACE") or "default"
    settings = Settings(
        installation=given.installation,
        redis_url=given.redis_url,
        redis_username=env.get("RH_REDIS_USERNAME", ""),
        redis_password=env.get("RH_REDIS_PASSWORD", ""),
        namespaces=tuple(dict.fromkeys(given.watch_namespace)),
        redis_acl=given.redis_acl,
        network_policies=given.network_policies,
        metrics_from=_peers(given.metrics_from),
        gateway_url=f"{given.gateway_url.rstrip('/')}/v1" if given.gateway_url else "",
        images=images,
        default_cache_path=given.model_cache,
        workers=given.workers,
    )
    election = Election(namespace, given.lease, env.get("POD_NAME") or socket.gethostname())
    return Options(settings, election, given.redis_secret, env.get("KUBECONFIG"), given.port, given.log_level)


def _engine_image(text: str) -> tuple[str, str]:
    kind, found, image = text.partition("=")
    if not found or kind not in ENGINE_KINDS or not image:
        raise BadSettings(f"--engine-image {text!r}: write KIND=IMAGE with KIND one of {', '.join(ENGINE_KINDS)}")
    return kind, image


def _peers(text: str) -> tuple[dict[str, Any], ...]:
    try:
        peers = json.loads(text)
    except ValueError:
        peers = None
    if not isinstance(peers, list) or not all(isinstance(peer, dict) and peer for peer in peers):
        raise BadSettings(f"--metrics-from {text!r}: write a JSON list of NetworkPolicyPeers that are not empty")
    return tuple(peers)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="roundhouse-operator",
        description="Keeps InferenceServices running. `roundhouse-operator render-crds DIR` writes their definitions.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--installation", required=True, help="name space in Redis, <helm namespace>/<release>")
    add("--redis-url", required=True, help="Redis as operator and pods reach it, without credentials")
    add("--redis-secret", default="", help="Secret in the operator's namespace with Redis' password, made when missing;"
        " not needed when RH_REDIS_PASSWORD is set")  # fmt: skip
    add("--lease", default="roundhouse-operator", help="Lease in the operator's namespace by which one of them leads")
    add("--watch-namespace", action="append", default=[], metavar="NAMESPACE", help="may be repeated; none means all")
    add("--gateway-url", default="", help="where clients reach the gateways, without /v1; shown in status.url")
    add("--agent-image", default="", help="image of the agent beside each engine")
    add("--engine-image", action="append", default=[], metavar="KIND=IMAGE", help="image of an engine kind")
    add("--model-cache", default="", metavar="PATH", help="folder of the nodes for models of services that say nothing")
    add("--redis-acl", action="store_true", help="give the agents of each namespace a Redis user of their own; ours"
        " must be allowed to ACL SETUSER")  # fmt: skip
    add("--network-policies", action="store_true", help="keep a NetworkPolicy per InferenceService")
    add(
        "--metrics-from",
        default="[]",
        metavar="JSON",
        help="NetworkPolicyPeers that may scrape engines and agents, too",
    )
    add("--workers", type=int, default=16, help="services reconciled at the same time")
    add("--port", type=int, default=8082, help="port of /healthz, /readyz and /metrics")
    add("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"], help="least level that is logged")
    return parser


def crd_folder(argv: Sequence[str]) -> Path | None:
    """The folder of ``render-crds``, None when something else is asked for."""
    if not argv or argv[0] != "render-crds":
        return None
    parser = argparse.ArgumentParser(prog="roundhouse-operator render-crds", allow_abbrev=False)
    parser.add_argument("folder", type=Path, help="folder to write the CustomResourceDefinitions into")
    folder: Path = parser.parse_args(argv[1:]).folder
    return folder
