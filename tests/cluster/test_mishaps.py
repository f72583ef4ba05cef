"""Things that people and machines do to a running installation."""

import time
from threading import Thread

from tests.cluster.kube import Kube, eventually
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.release import Release, ask
from tests.cluster.services import (
    applied,
    container,
    names,
    pods,
    ready_pods,
    serving,
    sim,
    uids,
    wait_ready,
    wait_reason,
)


def test_deleted_and_created_again_within_a_second_it_serves_anew(kube: Kube, release: Release) -> None:
    with serving(kube, sim("again")) as name:
        before = uids(pods(kube, name))
        kube.delete("infsvc", name)
        kube.apply(sim("again"))
        eventually(lambda: ready_pods(kube, name) and not uids(pods(kube, name)) & before, within=90)
        wait_ready(kube, name)
        eventually(lambda: release.chat(name).status == 200)


def test_a_deleted_engine_replica_is_replaced(kube: Kube, release: Release) -> None:
    with serving(kube, sim("bereft")) as name:
        (pod,) = pods(kube, name)
        (replica,) = kube.get("erep", labels=f"roundhouse.dev/service={name}")
        kube.delete("erep", replica["metadata"]["name"])
        eventually(lambda: uids(ready_pods(kube, name)) - {pod["metadata"]["uid"]}, within=90)
        assert release.chat(name).status == 200


def test_a_deleted_lease_of_the_election_ends_nothing(kube: Kube, release: Release) -> None:
    with serving(kube, sim("leased")) as name:
        before = uids(pods(kube, name))
        kube.delete("lease", f"{release.fullname}-operator", namespace=release.namespace)
        eventually(lambda: _leader(kube, release))
        kube.apply(sim("leased", replicas=2))
        eventually(lambda: len(ready_pods(kube, name)) == 2, within=60)
        assert before <= uids(pods(kube, name))


def _leader(kube: Kube, release: Release) -> str:
    lease = kube.get("lease", f"{release.fullname}-operator", namespace=release.namespace)
    return str(lease["spec"].get("holderIdentity") or "")


def test_a_pod_that_hangs_terminating_is_replaced_all_the_same(kube: Kube, release: Release) -> None:
    with serving(kube, sim("hanging", drain={"timeoutSeconds": 1})) as name:
        (pod,) = pods(kube, name)
        stuck = pod["metadata"]["name"]
        kube.kubectl(
            "patch", "pod", stuck, "--type=merge", "--patch", '{"metadata": {"finalizers": ["example.com/stuck"]}}'
        )
        try:
            kube.delete("pod", stuck)
            eventually(lambda: names(ready_pods(kube, name)) - {stuck}, within=150)
            assert release.chat(name).status == 200
        finally:
            kube.kubectl("patch", "pod", stuck, "--type=merge", "--patch", '{"metadata": {"finalizers": null}}')


def test_a_service_deleted_while_no_operator_runs_leaves_redis_afterwards(kube: Kube, release: Release) -> None:
    operator = f"deployment/{release.fullname}-operator"

    def scale(replicas: int) -> None:
        kube.kubectl("scale", operator, "--namespace", release.namespace, f"--replicas={replicas}")

    with serving(kube, sim("orphan")) as name:
        scale(0)
        eventually(lambda: not release.pods("operator"), within=60)
        kube.delete("infsvc", name)
        eventually(lambda: not kube.get("pods", labels=f"roundhouse.dev/service={name}"), within=90)
        assert release.chat(name).status != 404
        scale(1)
        eventually(lambda: release.chat(name).status == 404, within=60)
        eventually(lambda: not [key for key in release.redis_keys() if f"{{default/{name}}}" in key], within=60)


def test_no_gpu_is_told_within_seconds_of_the_scheduler(kube: Kube, release: Release) -> None:
    with applied(kube, sim("greedy", resources={"gpus": 3})) as name:
        eventually(lambda: _unscheduled(kube, name), within=30)
        seen = time.monotonic()
        condition = wait_reason(kube, name, "WaitingForGPU", within=5)
        assert time.monotonic() - seen <= 5
        assert "free 3 × nvidia.com/gpu on one node" in condition["message"]


def _unscheduled(kube: Kube, name: str) -> bool:
    conditions = [c for pod in pods(kube, name) for c in pod["status"].get("conditions", [])]
    return any(c["type"] == "PodScheduled" and c["status"] == "False" for c in conditions)


def test_a_missing_image_is_told(kube: Kube, release: Release) -> None:
    engine = {"name": "sim", "image": "localhost/roundhouse-sim:none"}
    with applied(kube, sim("imageless", engine=engine)) as name:
        assert "localhost/roundhouse-sim:none" in wait_reason(kube, name, "ImagePullFailed")["message"]


def test_an_engine_out_of_memory_is_told_with_the_remedy(kube: Kube, release: Release) -> None:
    with applied(kube, sim("fat", resources={"gpus": 0, "memory": "16Mi"})) as name:
        message = wait_reason(kube, name, "EngineCrashLoop", within=90)["message"]
        assert "OOMKilled" in message
        assert "raise spec.resources.memory" in message


def test_an_engine_that_no_longer_answers_is_restarted_in_place(kube: Kube, release: Release) -> None:
    with serving(kube, sim("deaf")) as name:
        (pod,) = pods(kube, name)
        deaf = {"fault": "hang", "count": -1, "path": "/health"}
        assert ask(f"http://{pod['status']['podIP']}:8000/sim/faults", deaf).status == 200
        restarted = eventually(
            lambda: [p for p in pods(kube, name) if container(p, "engine")["restartCount"]], within=150
        )
        assert uids(restarted) == uids([pod])
        eventually(lambda: ready_pods(kube, name), within=60)
        assert release.chat(name).status == 200


def test_an_agent_of_another_version_is_told_and_its_replica_serves_on(kube: Kube, release: Release) -> None:
    with serving(kube, sim("outdated")) as name:
        (lease,) = [key for key in release.redis_keys() if f"{{default/{name}}}:lease:" in key]
        newer = "newer = json.dumps(json.loads(redis.get(sys.argv[3])) | {'v': 99})"
        often = "[(redis.set(sys.argv[3], newer, ex=5), time.sleep(0.01)) for _ in range(2000)]"
        agent = Thread(target=release.in_redis, args=(f"{newer}; {often}", lease))
        agent.start()

        def live(status: str) -> dict[str, str] | None:
            told = kube.condition("infsvc", name, "LiveData")
            return told if told["status"] == status else None

        told = eventually(lambda: live("False"), within=15)
        assert told["reason"] == "AgentOutdated"
        assert "upgrade the older of the two" in told["message"]
        assert release.chat(name).status == 200
        agent.join()
        eventually(lambda: live("True"))


def test_gpus_that_fail_are_waited_for(kube: Kube, release: Release, local_cluster: LocalCluster) -> None:
    folder = "/var/lib/kubelet/device-plugins/unhealthy"
    marks = [f"{folder}/GPU-fake-{number}" for number in (0, 1)]

    def on_every_node(*command: str) -> None:
        for node in local_cluster.nodes:
            local_cluster.enter(*command, node=node)

    on_every_node("mkdir", "-p", folder)
    on_every_node("touch", *marks)
    try:
        eventually(lambda: all(n["status"]["allocatable"].get("nvidia.com/gpu") == "0" for n in kube.get("nodes")))
        with applied(kube, sim("waiting", resources={"gpus": 1})) as name:
            wait_reason(kube, name, "WaitingForGPU", within=30)
            on_every_node("rm", *marks)
            wait_ready(kube, name)
    finally:
        on_every_node("rm", "-f", *marks)
