"""How pods end, with real processes."""

import asyncio
import os
import signal

from roundhouse_operator.cluster import ENGINE_REPLICA, POD, Obj

from tests.integration.local.node import Node, alive, container, http, spec, until


def hook(path: str, port: int = 8000) -> Obj:
    return {"preStop": {"httpGet": {"path": path, "port": port}}}


def sidecar(name: str, port: int = 9090, **fields: object) -> Obj:
    probe = http("/live", port, failureThreshold=999)
    return container(name, "--port", str(port), restartPolicy="Always", startupProbe=probe, **fields)


async def ready(node: Node) -> None:
    async def look() -> bool:
        return await node.condition("Ready") == "True"

    await until(look, "pod ready")


async def stop(node: Node, grace_seconds: int | None = None) -> None:
    await node.cluster.delete(POD, "default", "p", grace_seconds=grace_seconds)


async def test_hook_runs_before_sigterm_and_the_sidecar_goes_last(node: Node) -> None:
    main = container("main", "--port", "8000", readinessProbe=http("/ready"), lifecycle=hook("/drain", 9090))
    await node.run(**spec(node, main, init=[sidecar("side")]))
    await ready(node)
    await stop(node)
    await until(node.gone)
    assert node.events()[2:] == ["side GET /drain", "main term", "main end", "side term", "side end"]
    assert not any(alive(pid) for pid in node.pids())


async def test_sidecars_stop_in_reverse_order(node: Node) -> None:
    await node.run(**spec(node, container("main"), init=[sidecar("one", 9091), sidecar("two", 9092)]))
    await ready(node)
    await until(lambda: "main start" in node.events())
    await stop(node)
    await until(node.gone)
    assert [event for event in node.events() if event.endswith("end")] == ["main end", "two end", "one end"]


async def test_pod_is_terminating_until_its_processes_are_gone(node: Node) -> None:
    await node.run(**spec(node, container("main", "--term-takes", "0.3")))
    await until(lambda: "main start" in node.events())
    await stop(node)
    await until(lambda: "main term" in node.events())
    assert "deletionTimestamp" in (await node.pod())["metadata"]
    await until(node.gone)
    assert "main end" in node.events()


async def test_container_that_ignores_sigterm_is_killed_when_the_grace_is_over(node: Node) -> None:
    await node.run(**spec(node, container("main", "--ignore-term", "--child")))
    await until(lambda: "main start" in node.events())
    await stop(node, grace_seconds=1)
    await until(node.gone)
    assert "main term" in node.events()
    assert not any(alive(pid) for pid in [*node.pids(), *node.pids("child")])


async def test_hook_that_hangs_uses_up_the_grace(node: Node) -> None:
    main = container("main", "--port", "8000", readinessProbe=http("/ready"), lifecycle=hook("/hang"))
    await node.run(**spec(node, main))
    await ready(node)
    await stop(node, grace_seconds=1)
    await until(node.gone)
    assert node.events() == ["main start", "main GET /hang", "main term", "main end"]


async def test_hook_of_a_dead_container_is_not_waited_for(node: Node) -> None:
    main = container("main", "--port", "8000", readinessProbe=http("/ready"), lifecycle=hook("/hang", 9090))
    await node.run(**spec(node, main, init=[sidecar("side")]))
    await ready(node)
    await stop(node, grace_seconds=600)
    await until(lambda: "side GET /hang" in node.events())
    os.kill(node.pids()[1], signal.SIGKILL)
    await until(node.gone)


async def test_second_delete_shortens_the_grace(node: Node) -> None:
    await node.run(**spec(node, container("main", "--ignore-term")))
    await until(lambda: "main start" in node.events())
    await stop(node, grace_seconds=600)
    await until(lambda: "main term" in node.events())
    await stop(node, grace_seconds=1)
    await until(node.gone)


async def test_exec_and_sleep_hooks_run(node: Node) -> None:
    command = {"preStop": {"exec": {"command": ["/bin/sh", "-c", 'echo "main hook" >>"$EVENTS"']}}}
    sleepy = {"preStop": {"sleep": {"seconds": 0.2}}}
    await node.run(**spec(node, container("main", lifecycle=command), container("other", lifecycle=sleepy)))
    await until(lambda: len(node.events()) == 2)
    await stop(node)
    await until(node.gone)
    assert node.events().index("main hook") < node.events().index("main end") < node.events().index("other term")


async def test_pod_deleted_while_initialising_starts_nothing_more(node: Node) -> None:
    init = [container("init", "--term-takes", "0.2")]
    await node.run(**spec(node, container("main"), init=init))
    await until(lambda: "init start" in node.events())
    await stop(node)
    await until(node.gone)
    assert node.events() == ["init start", "init term", "init end"]


async def test_pod_deleted_during_its_back_off_goes_at_once(node: Node) -> None:
    await node.run(**spec(node, container("main", "--exit", "1")))
    await until(lambda: node.events().count("main start") == 3)
    await stop(node, grace_seconds=600)
    await until(node.gone)


async def test_pod_waiting_for_a_secret_can_be_deleted(node: Node) -> None:
    await node.run(**spec(node, container("main"), volumes=[{"name": "x", "secret": {"secretName": "none"}}]))

    async def waiting() -> bool:
        return (await node.status("main")).get("state", {}).get("waiting", {}).get("message", "") != ""

    await until(waiting)
    await stop(node)
    await until(node.gone)


async def test_forced_deletion_ends_the_processes_too(node: Node) -> None:
    await node.run(**spec(node, container("main", "--ignore-term")))
    await until(lambda: "main start" in node.events())
    await stop(node, grace_seconds=0)
    assert await node.gone()
    await until(lambda: not any(alive(pid) for pid in node.pids()))


async def test_deletion_is_not_missed_when_the_watch_expires(node: Node) -> None:
    await node.run(**spec(node, container("main")))
    await until(lambda: "main start" in node.events())
    node.cluster.drop_watches()
    await stop(node, grace_seconds=0)
    node.cluster.forget_history()
    await until(lambda: not any(alive(pid) for pid in node.pids()))


async def test_pod_of_a_deleted_owner_terminates(node: Node) -> None:
    owner = await node.cluster.create(ENGINE_REPLICA, {"metadata": {"name": "r"}})
    reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": "r", "uid": owner["metadata"]["uid"]}
    metadata = {"name": "p", "ownerReferences": [reference]}
    await node.cluster.create(POD, {"metadata": metadata, "spec": spec(node, container("main"))})
    await until(lambda: "main start" in node.events())
    await node.cluster.delete(ENGINE_REPLICA, "default", "r")
    await until(node.gone)
    assert "main end" in node.events()


async def test_many_pods_come_and_go_and_leave_nothing(node: Node) -> None:
    names = [f"p{i}" for i in range(8)]
    for name in names:
        await node.run(name, **spec(node, container("main", "--child")))
    await until(lambda: len(node.pids()) == len(names))
    await asyncio.gather(*(node.cluster.delete(POD, "default", name, grace_seconds=5) for name in names))
    for name in names:
        await until(lambda name=name: node.gone(name))
    assert not any(alive(pid) for pid in [*node.pids(), *node.pids("child")])
    await until(lambda: list((node.home / "pods").iterdir()) == [])
