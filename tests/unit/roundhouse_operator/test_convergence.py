"""Whatever happens in whatever order: no more hardware than allowed, no more taken away than allowed, a good end."""

import asyncio
import os
from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from roundhouse_operator.cluster import ENGINE_REPLICA, POD, Obj
from roundhouse_operator.pod_facts import is_overdue, is_ready, is_terminating, owner_uid

from tests.unit.roundhouse_operator.world import SETTINGS, World, lease, service

EVENTS = (
    "scale", "change", "rollout", "start", "start all", "crash", "fail", "hang", "delete pod", "delete replica",
    "kubelet ends pods", "agent down", "agents up", "drained", "redis", "restart", "wait", "wait long",
)  # fmt: skip
Event = tuple[str, int]


@dataclass
class Wanted:
    replicas: int = 2
    change: int = 0
    surge: int = 0
    unavailable: int = 1

    def object(self) -> Obj:
        return service(
            replicas=self.replicas,
            engine={"args": [f"--change={self.change}"]},
            rollout={"maxSurge": self.surge, "maxUnavailable": self.unavailable},
        )


class Story:
    """One sequence of events, checked after each reconcile."""

    def __init__(self) -> None:
        self.world = World()
        self.wanted = Wanted()

    async def tell(self, events: list[Event]) -> None:
        await self.world.add_node()
        await self.world.apply(self.wanted.object())
        for event in events:
            await self._happen(*event)
            await self._reconcile()
        await self._end_well()

    async def _happen(self, event: str, number: int) -> None:
        world, wanted = self.world, self.wanted
        pods = [pod for pod in await world.pods() if not is_terminating(pod)]
        pod = pods[number % len(pods)] if pods else None
        match event:
            case "scale":
                wanted.replicas = number % 5
            case "change":
                wanted.change = number % 3
            case "rollout":
                wanted.surge, wanted.unavailable = ((0, 1), (1, 0), (1, 1), (2, 2))[number % 4]
            case "start all":
                await world.start_all()
            case "kubelet ends pods":
                await world.finish_terminating()
            case "agents up":
                world.agents.down.clear()
            case "drained":
                world.agents.answers |= dict.fromkeys(world.agents.deadlines, "drained")
            case "redis":
                world.redis_healthy = not world.redis_healthy
            case "restart":
                world.restart_operator()
            case "wait":
                world.now += number
            case "wait long":
                world.now += 100 * number
            case "delete replica" if pods:
                replicas = await world.replicas()
                if replicas:
                    await world.delete(ENGINE_REPLICA, replicas[number % len(replicas)])
            case _ if pod is not None:
                await self._happen_to(event, pod, number)
        await world.apply(wanted.object())

    async def _happen_to(self, event: str, pod: Obj, number: int) -> None:
        world = self.world
        match event:
            case "start":
                await world.start(pod)
            case "crash":
                await world.start(pod, ready=False)
                await world.crash(pod, number % 8, running=number % 2 == 0)
            case "fail":
                await world.pod_status(pod, phase="Failed", reason="Evicted")
            case "hang":
                uid = owner_uid(pod)
                assert uid
                world.leases.by_uid[uid] = lease(uid, pod["metadata"]["uid"], hung=True)
            case "delete pod":
                await world.delete(POD, pod)
            case "agent down":
                world.agents.down.add(str((pod.get("status") or {}).get("podIP")))

    async def _reconcile(self) -> None:
        running, serving = len(await self._running()), await self._serving()
        await self.world.reconcile()
        assert len(await self._running()) <= max(running, self.wanted.replicas + self.wanted.surge)
        floor = max(0, self.wanted.replicas - self.wanted.unavailable)
        assert await self._serving() >= min(serving, floor)

    async def _running(self) -> list[Obj]:
        """Pods that hold hardware."""
        now, overdue = self.world.now, SETTINGS.overdue_s
        pods = [pod for pod in await self.world.pods() if not is_overdue(pod, now, overdue)]
        return [pod for pod in pods if (pod.get("status") or {}).get("phase") != "Failed"]

    async def _serving(self) -> int:
        """Replicas that answer and are meant to stay; a hung one does not answer."""
        hung = {uid for uid, each in self.world.leases.by_uid.items() if each.hung}
        staying = {obj["metadata"]["uid"] for obj in await self.world.replicas() if "drain" not in obj["spec"]} - hung
        pods = [pod for pod in await self.world.pods() if is_ready(pod) and not is_terminating(pod)]
        return sum(owner_uid(pod) in staying for pod in pods if pod["status"].get("phase") != "Failed")

    async def _end_well(self) -> None:
        """From now on everything works: then all replicas are there, ready and current, and nothing moves any more."""
        world = self.world
        world.agents.down.clear()
        world.redis_healthy = True
        for _ in range(60):
            world.leases.by_uid = {uid: each for uid, each in world.leases.by_uid.items() if not each.hung}
            await world.finish_terminating()
            await world.start_all()
            world.agents.answers |= dict.fromkeys(world.agents.deadlines, "drained")
            world.now += 60
            world.cluster.writes.clear()
            await self._reconcile()
            if not world.cluster.writes:
                break
        world.cluster.writes.clear()
        await world.wait(60)
        assert world.cluster.writes == []
        status = (await world.service())["status"]
        replicas, pods = await world.replicas(), await world.pods()
        assert status["readyReplicas"] == len(pods) == len(replicas) == self.wanted.replicas
        assert {obj["spec"]["revision"] for obj in replicas} <= {status["revision"]}
        entry = world.publisher.entry("default/llama")
        assert entry is not None
        assert {member.replica_uid for member in entry.members} == {obj["metadata"]["uid"] for obj in replicas}
        assert not any(member.terminating for member in entry.members)


@given(st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 20)), max_size=25))
@settings(
    max_examples=int(os.environ.get("ROUNDHOUSE_STORIES", "25")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
def test_every_story_ends_well(events: list[Event]) -> None:
    asyncio.run(Story().tell(events))
