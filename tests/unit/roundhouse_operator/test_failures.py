"""What becomes of replicas that fail: replaced, but never in a hurry, and never for a missing lease."""

from roundhouse_operator.cluster import INFERENCE_SERVICE, POD, Obj

from tests.unit.roundhouse_operator.world import SETTINGS, World, lease, service


async def uids(world: World) -> list[str]:
    return [obj["metadata"]["uid"] for obj in await world.replicas()]


async def ready_condition(world: World) -> tuple[str, str]:
    condition = await world.condition("Ready")
    return condition["status"], condition["reason"]


async def hang(world: World, replica: Obj) -> None:
    uid = replica["metadata"]["uid"]
    world.leases.by_uid[uid] = lease(uid, world.leases.by_uid[uid].pod_uid, hung=True)


async def test_an_engine_restarted_in_place_keeps_its_replica(world: World) -> None:
    await world.apply(service())
    await world.ready()
    before = await uids(world)
    (pod,) = await world.pods()
    await world.crash(pod, 1, "killed", running=True)
    await world.wait(1)
    status = (await world.service())["status"]
    assert status["readyReplicas"] == 0
    assert await ready_condition(world) == ("False", "LoadingModel")
    entry = world.publisher.entry("default/llama")
    assert entry is not None
    assert len(entry.members) == 1  # unready is not gone
    await world.start(pod)
    await world.wait(1)
    assert await uids(world) == before
    assert await ready_condition(world) == ("True", "Serving")


async def test_a_crash_loop_is_told_and_then_replaced(world: World) -> None:
    await world.apply(service())
    await world.reconcile()
    before = await uids(world)
    (pod,) = await world.pods()
    await world.start(pod, ready=False)
    for restarts in range(1, SETTINGS.max_restarts):
        await world.crash(pod, restarts, "ValueError: bad config.json")
        await world.wait(10)
        assert await uids(world) == before
        assert (await world.condition("Progressing"))["status"] == "False"
        assert await ready_condition(world) == ("False", "EngineCrashLoop")
        assert "bad config.json" in (await world.condition("Ready"))["message"]
    await world.crash(pod, SETTINGS.max_restarts, "ValueError: bad config.json")
    await world.wait(10)
    assert await uids(world) == []
    await world.finish_terminating()
    await world.wait(9)
    assert await uids(world) == []
    assert await ready_condition(world) == ("False", "EngineCrashLoop")
    await world.wait(1)
    assert len(await uids(world)) == 1
    assert (await world.service())["status"]["replacement"]["attempts"] == 1


async def test_replicas_that_never_become_ready_are_replaced_ever_more_slowly(world: World) -> None:
    await world.apply(service())
    await world.reconcile()
    gaps = []
    for _ in range(4):
        (pod,) = await world.pods()
        await world.pod_status(pod, phase="Failed", reason="UnexpectedAdmissionError")
        await world.reconcile()
        waited = 0
        while not await world.pods() or (await world.pods())[0]["metadata"]["uid"] == pod["metadata"]["uid"]:
            assert await ready_condition(world) == ("False", "PodFailed")
            await world.wait(1)
            waited += 1
        gaps.append(waited)
    assert gaps == [10, 20, 40, 80]


async def test_the_wait_is_forgotten_once_all_are_ready(world: World) -> None:
    await world.apply(service())
    await world.reconcile()
    (pod,) = await world.pods()
    await world.pod_status(pod, phase="Failed", reason="Evicted")
    await world.reconcile()
    await world.wait(10)
    await world.ready()
    assert "replacement" not in (await world.service())["status"]


async def test_a_replica_that_had_been_ready_is_replaced_at_once(world: World) -> None:
    await world.apply(service())
    await world.ready()
    (pod,) = await world.pods()
    await world.pod_status(pod, phase="Failed", reason="Evicted")
    await world.reconcile()
    (new,) = await world.pods()
    assert new["metadata"]["uid"] != pod["metadata"]["uid"]


async def test_a_hung_replica_is_killed_quickly_and_replaced(world: World) -> None:
    await world.apply(service(replicas=4))
    await world.ready()
    victim = (await world.replicas())[0]
    await hang(world, victim)
    await world.reconcile()
    (dying,) = [pod for pod in await world.pods() if "deletionTimestamp" in pod["metadata"]]
    assert dying["metadata"]["name"] == victim["metadata"]["name"]
    assert dying["metadata"]["deletionGracePeriodSeconds"] == SETTINGS.hung_grace_s
    await world.ready()
    assert victim["metadata"]["uid"] not in await uids(world)
    assert len(await uids(world)) == 4


async def test_the_only_replica_is_killed_too_when_it_hangs(world: World) -> None:
    await world.apply(service())
    await world.ready()
    before = await world.replicas()
    await hang(world, before[0])
    await world.ready()
    assert (await uids(world))[0] != before[0]["metadata"]["uid"]


async def test_hung_replicas_are_killed_one_after_the_other(world: World) -> None:
    await world.apply(service(replicas=8))
    await world.ready()
    for replica in (await world.replicas())[:2]:
        await hang(world, replica)
    await world.reconcile()
    await world.reconcile()
    assert len([pod for pod in await world.pods() if "deletionTimestamp" in pod["metadata"]]) == 1
    await world.finish_terminating()
    await world.reconcile()
    assert len([pod for pod in await world.pods() if "deletionTimestamp" in pod["metadata"]]) == 1


async def test_nothing_is_killed_when_a_third_hangs_at_once(world: World) -> None:
    await world.apply(service(replicas=6))
    await world.ready()
    for replica in (await world.replicas())[:2]:
        await hang(world, replica)
    await world.reconcile()
    assert not [pod for pod in await world.pods() if "deletionTimestamp" in pod["metadata"]]


async def test_missing_leases_change_nothing(world: World) -> None:
    await world.apply(service(replicas=2))
    await world.ready()
    before = await world.replicas()
    world.leases.by_uid.clear()
    world.cluster.writes.clear()
    await world.wait(3600)
    assert await world.replicas() == before
    assert world.cluster.writes == []


async def test_an_old_revision_that_never_got_ready_is_dropped_at_once(world: World) -> None:
    await world.apply(service(model="hf://org/wrong"))
    await world.reconcile()
    before = await uids(world)
    await world.apply(service(model="hf://org/right"))
    await world.reconcile()
    await world.finish_terminating()
    await world.ready()
    assert await uids(world) != before
    assert world.agents.deadlines == {}
    assert await ready_condition(world) == ("True", "Serving")


async def test_a_bad_new_revision_does_not_take_the_old_one_down(world: World) -> None:
    await world.apply(service(replicas=3))
    await world.ready()
    await world.apply(service(replicas=3, engine={"args": ["--bad"]}))
    for _ in range(30):
        await world.wait(5)
        for address in list(world.agents.deadlines):
            world.agents.answers[address] = "drained"
        for pod in await world.pods():
            if "--bad" in str(pod["spec"]) and "deletionTimestamp" not in pod["metadata"]:
                await world.start(pod, ready=False)
                await world.crash(pod, 3, "unknown option --bad")
        await world.finish_terminating()
    status = (await world.service())["status"]
    assert status["readyReplicas"] == 2
    progressing = await world.condition("Progressing")
    assert (progressing["status"], progressing["reason"]) == ("False", "EngineCrashLoop")
    assert "unknown option --bad" in progressing["message"]
    assert await ready_condition(world) == ("True", "Serving")


async def test_no_progress_for_too_long_times_out_and_stops_nothing(world: World) -> None:
    await world.apply(service(rollout={"progressDeadlineSeconds": 100}))
    await world.reconcile()
    (pod,) = await world.pods()
    await world.start(pod, ready=False)
    await world.wait(100)
    assert await ready_condition(world) == ("False", "LoadingModel")
    await world.wait(1)
    assert await ready_condition(world) == ("False", "RolloutTimedOut")
    assert "raise rollout.progressDeadlineSeconds" in (await world.condition("Progressing"))["message"]
    await world.start(pod)
    await world.wait(1)
    assert await ready_condition(world) == ("True", "Serving")


async def test_progress_sets_the_deadline_back(world: World) -> None:
    await world.apply(service(replicas=2, rollout={"progressDeadlineSeconds": 100}))
    await world.reconcile()
    first, second = await world.pods()
    await world.wait(90)
    await world.start(first)
    await world.wait(5)
    await world.start(second, ready=False)
    await world.wait(90)
    assert (await world.condition("Progressing"))["reason"] == "LoadingModel"


async def test_an_invalid_spec_keeps_what_runs_and_says_what_is_wrong(world: World) -> None:
    await world.apply(service(replicas=2, servedNames=["m"]))
    await world.ready()
    before = await uids(world)
    await world.apply(service(replicas=5, engine={"args": ["--port", "1"]}))
    await world.reconcile()
    assert await uids(world) == before
    accepted = await world.condition("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "InvalidSpec")
    assert "--port" in accepted["message"]
    status = (await world.service())["status"]
    assert status["readyReplicas"] == 2


async def test_an_invalid_service_without_replicas_is_not_called_scaled_to_zero(world: World) -> None:
    await world.apply(service(engine={"args": ["--port=1"]}))
    await world.reconcile()
    for kind in ("Accepted", "Progressing", "Ready"):
        assert (await world.condition(kind))["reason"] == "InvalidSpec"
    assert (await world.condition("Available"))["status"] == "False"


async def test_no_replicas(world: World) -> None:
    await world.apply(service(replicas=1))
    await world.ready()
    await world.apply(service(replicas=0))
    await world.reconcile()
    world.agents.answers = dict.fromkeys(world.agents.deadlines, "drained")
    await world.wait(1)
    await world.finish_terminating()
    await world.reconcile()
    assert await world.pods() == []
    assert await ready_condition(world) == ("False", "ScaledToZero")
    assert (await world.condition("Progressing"))["reason"] == "ScaledToZero"
    entry = world.publisher.entry("default/llama")
    assert entry is not None
    assert entry.members == ()


async def test_surge_makes_the_new_replica_before_the_old_one_goes(world: World) -> None:
    await world.apply(service(rollout={"maxSurge": 1, "maxUnavailable": 0}))
    await world.ready()
    await world.apply(service(rollout={"maxSurge": 1, "maxUnavailable": 0}, engine={"args": ["--x"]}))
    await world.reconcile()
    assert len(await world.pods()) == 2
    assert world.agents.deadlines == {}
    await world.start_all()
    await world.reconcile()
    assert len(world.agents.deadlines) == 1
    assert (await world.service())["status"]["readyReplicas"] == 2


async def test_the_least_busy_replica_goes_first(world: World) -> None:
    await world.apply(service(replicas=3))
    await world.ready()
    replicas = await world.replicas()
    for replica, running in zip(replicas, (5, 1, 3), strict=True):
        uid = replica["metadata"]["uid"]
        world.leases.by_uid[uid] = lease(uid, world.leases.by_uid[uid].pod_uid, running=running, waiting=0)
    await world.apply(service(replicas=2))
    await world.reconcile()
    (victim,) = [obj for obj in await world.replicas() if "drain" in obj["spec"]]
    assert victim["metadata"]["uid"] == replicas[1]["metadata"]["uid"]


async def test_an_unready_replica_goes_before_an_idle_one(world: World) -> None:
    await world.apply(service(replicas=2))
    await world.ready()
    first, second = await world.pods()
    await world.crash(first, 1, running=True)
    await world.apply(service(replicas=1))
    await world.reconcile()
    (victim,) = [obj for obj in await world.replicas() if "drain" in obj["spec"]]
    assert victim["metadata"]["name"] == first["metadata"]["name"]
    assert second["metadata"]["name"] != first["metadata"]["name"]


async def test_a_gpu_service_waits_for_its_gpu_and_says_so(world: World) -> None:
    await world.apply(service(engine={"name": "vllm"}, resources={"gpus": 64}))
    await world.reconcile()
    await world.reconcile()
    assert await ready_condition(world) == ("False", "WaitingForGPU")
    (pod,) = await world.pods()
    limits = pod["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"nvidia.com/gpu": "64"}


async def test_a_model_cache_inside_the_pod_is_pointed_out(world: World) -> None:
    await world.apply(service())
    await world.reconcile()
    assert "each new replica downloads the model" in (await world.condition("Accepted"))["message"]
    await world.apply(service(modelCache={"hostPath": {"path": "/models"}}))
    await world.reconcile()
    assert (await world.condition("Accepted"))["message"] == ""


async def test_a_service_that_is_being_deleted_makes_nothing_new(world: World) -> None:
    obj = service()
    obj["metadata"]["finalizers"] = ["example.com/wait"]
    await world.apply(obj)
    await world.ready()
    meta = (await world.service())["metadata"]
    await world.cluster.delete(INFERENCE_SERVICE, meta["namespace"], meta["name"])
    (pod,) = await world.pods()
    await world.delete(POD, pod, grace_seconds=0)
    await world.reconcile()
    assert await world.pods() == []


async def test_an_agent_of_another_version_is_told_and_its_replica_serves_on(world: World) -> None:
    await world.apply(service())
    await world.ready()
    (replica,) = await world.replicas()
    world.leases.unread.add(replica["metadata"]["uid"])
    await world.reconcile()
    live = await world.condition("LiveData")
    assert (live["status"], live["reason"]) == ("False", "AgentOutdated")
    assert replica["metadata"]["name"] in live["message"]
    assert "upgrade the older of the two" in live["message"]
    assert (await world.condition("Ready"))["status"] == "True"
    world.leases.unread.clear()
    await world.reconcile()
    assert (await world.condition("LiveData"))["reason"] == "Fresh"
