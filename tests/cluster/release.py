"""One installation of the chart, as its users meet it."""

import base64
import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from tests.cluster.kube import CHART, Kube, Obj


@dataclass(frozen=True)
class Answer:
    """``status`` 0: nobody answered."""

    status: int
    body: Any = None


def ask(url: str, body: Obj | None = None, headers: dict[str, str] | None = None) -> Answer:
    """A request by HTTP; JSON both ways."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **(headers or {})})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return Answer(answer.status, _parsed(answer.read()))
    except urllib.error.HTTPError as error:
        return Answer(error.code, _parsed(error.read()))
    except OSError:
        return Answer(0)


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text.decode()


@dataclass(frozen=True)
class Release:
    kube: Kube
    name: str
    namespace: str

    def install(self, *options: str) -> None:
        """Install or upgrade, and wait until all is ready. The CRDs become this release's, whoever brought them."""
        words = ["upgrade", "--install", self.name, str(CHART), "--namespace", self.namespace, "--create-namespace"]
        node_port = ["--set", "gateway.service.type=NodePort"]
        waiting = ["--take-ownership", "--wait", "--timeout", "3m"]
        self.kube.helm(*words, *waiting, *node_port, *self.kube.chart_options, *options)

    def uninstall(self) -> None:
        self.kube.helm("uninstall", self.name, "--namespace", self.namespace, "--wait", "--timeout", "2m")

    def url(self) -> str:
        """The gateways, by a port of the node: reachable in every kind of test cluster."""
        service = self.kube.get("service", f"{self.fullname}-gateway", namespace=self.namespace)
        return f"http://{self.kube.node_address()}:{service['spec']['ports'][0]['nodePort']}"

    @property
    def fullname(self) -> str:
        return self.name if "roundhouse" in self.name else f"{self.name}-roundhouse"

    def pods(self, component: str) -> list[Obj]:
        """Those that are not being deleted."""
        labels = f"app.kubernetes.io/instance={self.name},app.kubernetes.io/component={component}"
        found = self.kube.get("pods", namespace=self.namespace, labels=labels)
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def operator_log(self) -> str:
        return self.kube.kubectl("logs", f"deployment/{self.fullname}-operator", "--namespace", self.namespace)

    def in_redis(self, script: str, *args: str) -> str:
        """What a script prints that has ``redis``, a client of one who knows the password."""
        secret = self.kube.get("secret", f"{self.fullname}-valkey", namespace=self.namespace)
        password = base64.b64decode(secret["data"]["password"]).decode()
        client = "redis = Redis(sys.argv[1], password=sys.argv[2], decode_responses=True)"
        script = f"import json, sys, time; from redis import Redis; {client}; {script}"
        command = ["exec", f"deployment/{self.fullname}-operator", "--namespace", self.namespace, "--", "python", "-c"]
        return self.kube.kubectl(*command, script, f"{self.fullname}-valkey", password, *args)

    def redis_keys(self) -> list[str]:
        return self.in_redis("print(*redis.keys(), sep='\\n')").split()

    def chat(self, model: str, text: str = "Hello", **options: Any) -> Answer:
        body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 8, **options}
        return ask(f"{self.url()}/v1/chat/completions", body)
