"""In which order the parts of a replica end when somebody deletes its pod."""

import threading
import time
from datetime import datetime

from tests.cluster.kube import Kube, eventually
from tests.cluster.release import Release
from tests.cluster.services import pods, serving, sim
from tests.cluster.traffic import streaming


def follow(kube: Kube, pod: str, container: str, lines: list[str]) -> threading.Thread:
    """Collects what the container logs until it ends, each line with its time."""

    def run() -> None:
        command = ["logs", pod, "--container", container, "--follow", "--timestamps"]
        lines.extend(kube.kubectl(*command, timeout=120).splitlines())

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def when(lines: list[str], word: str) -> datetime:
    line = next(line for line in lines if word in line)
    return datetime.fromisoformat(line.split()[0][:26].rstrip("Z") + "+00:00")


def test_the_drain_comes_first_then_the_engine_and_the_agent_last(kube: Kube, release: Release) -> None:
    agent: list[str] = []
    engine: list[str] = []
    with serving(kube, sim("ending", replicas=2, drain={"timeoutSeconds": 60})) as name:
        pod = pods(kube, name)[0]["metadata"]["name"]
        followers = [follow(kube, pod, "agent", agent), follow(kube, pod, "engine", engine)]
        with streaming(release.url(), name, clients=6, tokens=200) as traffic:
            eventually(lambda: len(traffic.replicas) == 2)
            begun = time.monotonic()
            kube.delete("pod", pod)
            for follower in followers:
                follower.join(90)
            ended = time.monotonic() - begun
        assert traffic.broken == []
        drained, asked = when(agent, "drain_started"), when(engine, "draining")
        assert drained < asked  # the hook returns when nothing is in flight; only then the signal comes
        assert "draining in_flight=0" in next(line for line in engine if "draining" in line)
        assert when(engine, "stopped") <= when(agent, "agent_stopped")
        assert ended < 30  # as long as the streams last, not as the grace allows
