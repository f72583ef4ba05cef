"""Order, probes and restarts of containers, with real processes."""

import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from roundhouse_operator.cluster import CONFIG_MAP, POD, SECRET, Obj

from tests.integration.local.node import Node, alive, container, http, spec, until


async def test_pod_becomes_ready_with_an_address_of_its_own(node: Node) -> None:
    ready = container("main", "--port", "8000", readinessProbe=http("/ready"))
    for name in ("a", "b"):
        await node.run(name, **spec(node, ready))
    for name in ("a", "b"):
        await until(lambda name=name: _is(node.condition("Ready", name), "True"))
    a, b = (await node.pod("a"))["status"], (await node.pod("b"))["status"]
    assert a["phase"] == b["phase"] == "Running"
    assert a["podIP"].startswith("127.")
    assert a["podIP"] != b["podIP"]


async def test_init_containers_run_one_after_the_other(node: Node) -> None:
    init = [container("one", "--exit", "0"), container("two", "--exit", "0")]
    await node.run(**spec(node, container("main"), init=init))
    await until(lambda: "main start" in node.events())
    assert node.events() == ["one start", "two start", "main start"]
    assert await node.condition("Initialized") == "True"


async def test_failed_init_container_is_run_again_before_the_next(node: Node) -> None:
    init = [container("one", "--exit", "3"), container("two", "--exit", "0")]
    await node.run(**spec(node, container("main"), init=init))
    await until(lambda: node.events().count("one start") >= 3)
    assert set(node.events()) == {"one start"}
    status = await node.status("one")
    assert status["lastState"]["terminated"]["exitCode"] == 3
    assert (await node.pod())["status"]["phase"] == "Pending"
    assert (await node.status("main"))["state"]["waiting"]["reason"] == "PodInitializing"


async def test_sidecar_gates_the_next_container_by_its_startup_probe(node: Node) -> None:
    gate = node.home / "gate"
    probe = http("/ready", 9090, failureThreshold=1000)
    side = container("side", "--port", "9090", "--ready-file", str(gate), restartPolicy="Always", startupProbe=probe)
    await node.run(**spec(node, container("main"), init=[side, container("init", "--exit", "0")]))
    await until(lambda: "side start" in node.events())
    await until(lambda: _has(node.status("side"), "state", "running"))
    assert node.events() == ["side start"]
    assert (await node.status("side"))["started"] is False
    gate.touch()
    await until(lambda: "main start" in node.events())
    assert node.events() == ["side start", "init start", "main start"]


async def test_sidecar_restarts_without_touching_the_main_container(node: Node) -> None:
    side = container(
        "side", "--port", "9090", restartPolicy="Always", startupProbe=http("/live", 9090, failureThreshold=99)
    )
    await node.run(**spec(node, container("main"), init=[side]))
    await until(lambda: "main start" in node.events())
    _kill(node.pids()[0])
    await until(lambda: node.events().count("side start") == 2)
    await until(lambda: _is(node.condition("Ready"), "True"))
    assert node.events().count("main start") == 1
    assert (await node.status("side"))["restartCount"] == 1


async def test_readiness_of_the_sidecar_counts_for_the_pod(node: Node) -> None:
    gate = node.home / "gate"
    side = container(
        "side", "--port", "9090", "--ready-file", str(gate), restartPolicy="Always", readinessProbe=http("/ready", 9090)
    )
    await node.run(**spec(node, container("main"), init=[side]))
    await until(lambda: _has(node.status("main"), "ready", True))
    assert await node.condition("Ready") == "False"
    gate.touch()
    await until(lambda: _is(node.condition("Ready"), "True"))
    gate.unlink()
    await until(lambda: _is(node.condition("Ready"), "False"))
    message = next(c["message"] for c in (await node.pod())["status"]["conditions"] if c["type"] == "Ready")
    assert message == "containers with unready status: [side]"


async def test_crashing_container_is_restarted_with_back_off(node: Node) -> None:
    await node.run(**spec(node, container("main", "--exit", "7")))
    await until(lambda: _reason(node, "CrashLoopBackOff"))
    status = await until(lambda: _restarted(node, 3))
    assert status["lastState"]["terminated"]["exitCode"] == 7
    assert status["lastState"]["terminated"]["reason"] == "Error"


async def test_killed_container_shows_its_signal_and_is_ready_again(node: Node) -> None:
    await node.run(**spec(node, container("main", "--port", "8000", readinessProbe=http("/ready"))))
    await until(lambda: _is(node.condition("Ready"), "True"))
    _kill(node.pids()[0])
    status = await until(lambda: _restarted(node, 1))
    assert status["lastState"]["terminated"] | {"exitCode": 137, "signal": 9} == status["lastState"]["terminated"]
    await until(lambda: _is(node.condition("Ready"), "True"))


async def test_failed_liveness_restarts_the_container_after_its_hook(node: Node) -> None:
    hang = {"tcpSocket": {"port": 8001}, "periodSeconds": 0.05, "failureThreshold": 2, "initialDelaySeconds": 0.3}
    hook = {"preStop": {"httpGet": {"path": "/bye", "port": 8000}}}
    await node.run(**spec(node, container("main", "--port", "8000", livenessProbe=hang, lifecycle=hook)))
    await until(lambda: node.events().count("main start") >= 2)
    assert node.events()[:4] == ["main start", "main GET /bye", "main term", "main end"]


async def test_hanging_probe_counts_as_failed(node: Node) -> None:
    hang = http("/hang", timeoutSeconds=0.1, terminationGracePeriodSeconds=1)
    await node.run(**spec(node, container("main", "--port", "8000", livenessProbe=hang)))
    await until(lambda: _restarted(node, 1))


async def test_exec_probe_runs_in_the_containers_environment(node: Node) -> None:
    probe = {"exec": {"command": ["/bin/sh", "-c", 'test "$EVENTS" != /events/events -a -f "$EVENTS"']}}
    await node.run(**spec(node, container("main", readinessProbe={**probe, "periodSeconds": 0.05})))
    await until(lambda: _is(node.condition("Ready"), "True"))


async def test_last_words_are_taken_from_the_file(node: Node) -> None:
    await node.run(**spec(node, container("main", "--last-words", "/dev/termination-log", "--exit", "1")))
    status = await until(lambda: _restarted(node, 1))
    assert status["lastState"]["terminated"]["message"] == "last words"


async def test_last_words_fall_back_to_the_log_on_error(node: Node) -> None:
    policy = {"terminationMessagePolicy": "FallbackToLogsOnError"}
    await node.run(**spec(node, container("main", "--say", "no model file", "--exit", "1", **policy)))
    status = await until(lambda: _restarted(node, 1))
    assert status["lastState"]["terminated"]["message"] == "no model file\n"


async def test_job_like_pod_succeeds_and_keeps_its_status(node: Node) -> None:
    probe = http("/live", 9090, failureThreshold=99)
    side = container("side", "--port", "9090", restartPolicy="Always", startupProbe=probe)
    await node.run(**spec(node, container("main", "--exit", "0"), init=[side], restartPolicy="Never"))
    await until(lambda: _phase(node, "Succeeded"))
    assert node.events()[-2:] == ["side term", "side end"]


async def test_pod_that_never_restarts_fails(node: Node) -> None:
    await node.run(**spec(node, container("main", "--exit", "2"), restartPolicy="Never"))
    await until(lambda: _phase(node, "Failed"))
    assert (await node.status("main"))["state"]["terminated"]["exitCode"] == 2


async def test_failed_init_container_fails_a_pod_that_never_restarts(node: Node) -> None:
    init = [container("init", "--exit", "2")]
    await node.run(**spec(node, container("main"), init=init, restartPolicy="Never"))
    await until(lambda: _phase(node, "Failed"))
    assert node.events() == ["init start"]


async def test_missing_secret_is_waited_for(node: Node) -> None:
    env = [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}]
    await node.run(**spec(node, container("main", env=env)))
    await until(lambda: _reason(node, "CreateContainerConfigError"))
    assert (await node.status("main"))["state"]["waiting"]["message"] == 'secret "hub" not found'
    await node.cluster.create(SECRET, {"metadata": {"name": "hub"}, "stringData": {"token": "x"}})
    await until(lambda: "main start" in node.events())


async def test_volumes_of_secrets_and_config_maps_are_files(node: Node) -> None:
    await node.cluster.create(SECRET, {"metadata": {"name": "s"}, "stringData": {"key": "secret\n"}})
    await node.cluster.create(CONFIG_MAP, {"metadata": {"name": "m"}, "data": {"a": "1\n", "b": "2\n"}})
    volumes = [
        {"name": "s", "secret": {"secretName": "s"}},
        {"name": "m", "configMap": {"name": "m", "items": [{"key": "b", "path": "deep/b"}]}},
    ]
    mounts = [{"name": "s", "mountPath": "/etc/s"}, {"name": "m", "mountPath": "/etc/m"}]
    command = ["/bin/sh", "-c", 'cat "$1" "$2"; exit 1', "sh", "/etc/s/key", "/etc/m/deep/b"]
    main = container("main", command=command, volumeMounts=mounts, terminationMessagePolicy="FallbackToLogsOnError") | {
        "args": []
    }
    await node.run(**spec(node, main, volumes=volumes))
    status = await until(lambda: _restarted(node, 1))
    assert status["lastState"]["terminated"]["message"] == "secret\n2\n"


async def test_empty_dir_is_shared_survives_restarts_and_goes_with_the_pod(node: Node) -> None:
    run = {
        "volumeMounts": [{"name": "run", "mountPath": "/run/x"}],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    file = '"$RUN_DIR/file"'
    script = f'echo "$RUN_DIR"; echo more >>{file}; test $(wc -l <{file}) -lt 3 && exit 1; cat {file}; exit 4'
    env = [{"name": "RUN_DIR", "value": "/run/x"}]
    first = container("first", command=["/bin/sh", "-c", 'echo first >"$0/file"', "/run/x"], **run) | {"args": []}
    main = container("main", command=["/bin/sh", "-c", script], env=env, **run) | {"args": []}
    await node.run(**spec(node, main, init=[first], volumes=[{"name": "run", "emptyDir": {"medium": "Memory"}}]))
    status = await until(lambda: _ended_with(node, 4))
    folder, *lines = status["lastState"]["terminated"]["message"].splitlines()
    assert lines == ["first", "more", "more"]
    await node.cluster.delete(POD, "default", "p", grace_seconds=1)
    await until(node.gone)
    await until(lambda: not Path(folder).exists())


async def test_unknown_image_is_named_with_the_known_ones(node: Node) -> None:
    await node.run(**spec(node, container("main") | {"image": "docker.io/library/nginx:1"}))
    await until(lambda: _reason(node, "ErrImagePull"))
    message = (await node.status("main"))["state"]["waiting"]["message"]
    assert "docker.io/library/nginx:1" in message
    assert "test" in message


async def test_mount_that_hides_the_images_program_does_not_matter(node: Node) -> None:
    over_python = {"name": "over", "mountPath": str(Path(sys.executable).parent)}
    volumes = [{"name": "over", "emptyDir": {}}]
    await node.run(**spec(node, container("main", volumeMounts=[over_python]), volumes=volumes))
    await until(lambda: "main start" in node.events())


async def test_program_that_does_not_exist_is_a_start_error(node: Node) -> None:
    await node.run(**spec(node, container("main", command=["/no/such/program"])))
    status = await until(lambda: _restarted(node, 1))
    assert status["lastState"]["terminated"]["reason"] == "StartError"
    assert "No such file" in status["lastState"]["terminated"]["message"]
    assert all(not alive(pid) for pid in node.pids())


async def test_pod_that_the_kubelet_cannot_handle_has_failed_and_others_go_on(node: Node) -> None:
    broken = container("main")
    del broken["image"]
    await node.run("broken", **spec(node, broken))
    await node.run(**spec(node, container("main")))
    await until(lambda: "main start" in node.events())

    async def failed() -> bool:
        status = (await node.pod("broken"))["status"]
        return (status["phase"], status.get("reason")) == ("Failed", "KubeletError")

    await until(failed)


async def test_port_that_is_taken_everywhere_is_told(node: Node) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        await node.run(**spec(node, container("main", ports=[{"containerPort": port}])))
        await until(lambda: _reason(node, "CreateContainerConfigError"))
        message = (await node.status("main"))["state"]["waiting"]["message"]
        assert f"port {port} is taken on every loopback address" in message
    await until(lambda: "main start" in node.events())


async def _is(found: Any, want: object) -> bool:
    return bool(await found == want)


async def _has(found: Any, field: str, want: object) -> bool:
    value = (await found).get(field)
    return bool(value == want or (isinstance(value, dict) and want in value))


async def _phase(node: Node, phase: str) -> bool:
    return bool((await node.pod())["status"].get("phase") == phase)


async def _reason(node: Node, reason: str) -> bool:
    state = (await node.status("main")).get("state", {})
    return bool(state.get("waiting", {}).get("reason") == reason)


async def _restarted(node: Node, times: int) -> Obj | None:
    status = await node.status("main")
    return status if status.get("restartCount", 0) >= times else None


async def _ended_with(node: Node, code: int) -> Obj | None:
    status = await node.status("main")
    ended = status.get("lastState", {}).get("terminated", {})
    return status if ended.get("exitCode") == code else None


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
