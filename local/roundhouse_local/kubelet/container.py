"""One container of one pod: started, probed, restarted, stopped.

`run` is the container's life: it starts the process, waits for its end and starts it again as the restart policy says.
`stop` may come from a failed probe (the container restarts) or from the pod's end (`retire` first, then it does not).
"""

import asyncio
import logging
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from roundhouse_local.errors import ImageError, MissingSource, SpawnError
from roundhouse_local.kubelet.actions import Actions, Place
from roundhouse_local.kubelet.backoff import Backoff
from roundhouse_local.kubelet.logs import log_file, termination_message
from roundhouse_local.kubelet.probes import Outcome, ProbeRule, run_probe
from roundhouse_local.kubelet.records import ContainerRecord, Grace, Running, Terminated, Waiting
from roundhouse_local.processes import Exit, Process, ProcessHost

logger = logging.getLogger(__name__)

MIN_GRACE_S = 2.0
"""A container always has this long between SIGTERM and SIGKILL, even when its hook has used up the grace."""


@dataclass(frozen=True, slots=True)
class Command:
    """What to start and where: made anew for each start, since Secrets may have come or changed."""

    argv: tuple[str, ...]
    place: Place


@dataclass(frozen=True, slots=True)
class ContainerHost:
    """What a container needs of its pod and node. ``command`` raises `ImageError` or `MissingSource`."""

    processes: ProcessHost
    actions: Actions
    command: Callable[[ContainerRecord], Awaitable[Command]]
    changed: Callable[[], None]
    logs: Path
    last_words: Path
    namespace: str
    pod: str
    restart_policy: str
    grace_s: float
    backoff: Callable[[], Backoff]
    retry_s: float = 1.0


class Container:
    def __init__(self, record: ContainerRecord, host: ContainerHost) -> None:
        self.record = record
        self._host = host
        self._backoff = host.backoff()
        self._retired = asyncio.Event()
        self._process: Process | None = None
        self._place: Place | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._lives = 0
        self.started = asyncio.Event()
        self.ended = asyncio.Event()

    async def run(self) -> None:
        """Until the container is over for good: done, not to be restarted, or retired."""
        try:
            while not self._retired.is_set():
                state = await self._run_once()
                if state is None or not self._restarts(state):
                    return
                await self._wait_before_restart(state.finished_at - state.started_at)
        finally:
            self.ended.set()

    def retire(self) -> None:
        """Do not start again."""
        self._retired.set()

    async def stop(self, grace: Grace, turn: Callable[[], Awaitable[None]] | None = None) -> None:
        """Hook, the container's ``turn`` among its siblings, SIGTERM, SIGKILL: in that order, within ``grace``."""
        process = self._process
        if process is None or process.exit is not None:
            return
        await self._pre_stop(grace)
        if turn is not None:
            await _within(grace, turn)
        process.signal(signal.SIGTERM)
        try:
            async with grace.limit(at_least_s=MIN_GRACE_S if grace.remaining_s < MIN_GRACE_S else 0):
                await process.wait()
        except TimeoutError:
            logger.info("container_killed", extra=self._who())
            process.kill()
            await process.wait()

    async def _run_once(self) -> Terminated | None:
        """One life of the process; None when it was retired before it could start."""
        command = await self._next_command()
        if command is None:
            return None
        record, begun = self.record, time.time()
        words = self._host.last_words / record.name
        try:
            log = log_file(self._host.logs, self._host.namespace, self._host.pod, record.name, self._lives)
            words.unlink(missing_ok=True)
            self._process = await self._host.processes.spawn(command.argv, command.place.env, command.place.folder, log)
        except (SpawnError, OSError) as error:
            self._count_life()
            state = Terminated(128, "StartError", begun, time.time(), str(error))
        else:
            if self._retired.is_set():  # It came while the pod was being stopped.
                self._process.kill()
            ended = await self._alive(self._process, command.place)
            policy = record.spec.get("terminationMessagePolicy", "File")
            message = termination_message(words, log, policy=policy, failed=ended.shell_code != 0)
            reason = "Error" if ended.shell_code else "Completed"
            finished = time.time()
            state = Terminated(ended.shell_code, reason, begun, finished, message, ended.signal, record.container_id)
        record.state, record.ready = state, record.role == "init" and state.exit_code == 0
        record.started = False
        self._host.changed()
        logger.info("container_ended", extra=self._who() | {"code": state.exit_code})
        return state

    async def _alive(self, process: Process, place: Place) -> Exit:
        record = self.record
        self._count_life()
        record.container_id = f"process://{process.pid}"
        record.state = Running(time.time())
        self._place = place
        probes = asyncio.create_task(self._probe(place))
        self._host.changed()
        logger.info("container_started", extra=self._who() | {"pid": process.pid})
        try:
            return await process.wait()
        finally:
            if process.exit is None:  # Cancelled.
                process.kill()
            probes.cancel()
            await asyncio.gather(probes, return_exceptions=True)
            if self._stopping is not None:
                await asyncio.gather(self._stopping, return_exceptions=True)
                self._stopping = None

    async def _probe(self, place: Place) -> None:
        """Startup first; only when it has succeeded the container counts as started and the other two begin."""
        spec = self.record.spec
        if startup := spec.get("startupProbe"):
            rule = ProbeRule.of(startup)
            await run_probe(rule, self._check(startup, place), self._fatal("startup", rule), once=True)
        self.record.started = True
        self.record.ready = not spec.get("readinessProbe")
        self.started.set()
        self._host.changed()
        async with asyncio.TaskGroup() as group:
            if readiness := spec.get("readinessProbe"):
                rule = ProbeRule.of(readiness)
                group.create_task(run_probe(rule, self._check(readiness, place), self._set_ready))
            if liveness := spec.get("livenessProbe"):
                rule = ProbeRule.of(liveness)
                group.create_task(run_probe(rule, self._check(liveness, place), self._fatal("liveness", rule)))

    def _count_life(self) -> None:
        """Watchers see the restart together with the new life, as from a real kubelet."""
        if isinstance(self.record.state, Terminated):
            self.record.last = self.record.state
        self.record.restarts = self._lives
        self._lives += 1

    def _check(self, probe: dict[str, object], place: Place) -> Callable[[float], Awaitable[Outcome]]:
        return lambda _: self._host.actions.run(probe, place)

    def _set_ready(self, outcome: Outcome) -> None:
        if outcome.ok != self.record.ready:
            self.record.ready = outcome.ok
            logger.info("readiness", extra=self._who() | {"ready": outcome.ok, "why": outcome.message})
            self._host.changed()

    def _fatal(self, kind: str, rule: ProbeRule) -> Callable[[Outcome], None]:
        def decided(outcome: Outcome) -> None:
            if outcome.ok or self._stopping is not None or self._retired.is_set():
                return
            logger.warning("probe_failed", extra=self._who() | {"probe": kind, "why": outcome.message})
            grace = Grace(self._host.grace_s if rule.grace_s is None else rule.grace_s)
            self._stopping = asyncio.create_task(self.stop(grace))

        return decided

    async def _pre_stop(self, grace: Grace) -> None:
        hook = (self.record.spec.get("lifecycle") or {}).get("preStop")
        if not hook or self._place is None or grace.remaining_s <= 0:
            return
        process, place = self._process, self._place

        async def run() -> None:
            done = asyncio.create_task(self._host.actions.run(hook, place))
            gone = asyncio.create_task(process.wait() if process else asyncio.sleep(0))
            try:
                await asyncio.wait({done, gone}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                done.cancel()
                gone.cancel()
                await asyncio.gather(done, gone, return_exceptions=True)

        await _within(grace, run)

    async def _next_command(self) -> Command | None:
        """Tries again until what the container refers to is there."""
        while not self._retired.is_set():
            try:
                return await self._host.command(self.record)
            except ImageError as error:
                self._wait_for("ErrImagePull", str(error))
            except MissingSource as error:
                self._wait_for("CreateContainerConfigError", str(error))
            await self._pause(self._host.retry_s)
        return None

    def _restarts(self, state: Terminated) -> bool:
        if self._retired.is_set():
            return False
        match self.record.role, self._host.restart_policy:
            case "sidecar", _:
                return True
            case "init", policy:
                return state.exit_code != 0 and policy != "Never"
            case _, "Always":
                return True
            case _, policy:
                return policy == "OnFailure" and state.exit_code != 0

    async def _wait_before_restart(self, ran_s: float) -> None:
        delay = self._backoff.delay(ran_s)
        record = self.record
        if delay:
            if isinstance(record.state, Terminated):
                record.last = record.state
            pod = f"{self._host.pod}_{self._host.namespace}"
            text = f"back-off {delay:g}s restarting failed container={record.name} pod={pod}"
            self._wait_for("CrashLoopBackOff", text)
            await self._pause(delay)

    def _wait_for(self, reason: str, message: str) -> None:
        if self.record.state != Waiting(reason, message):
            self.record.state = Waiting(reason, message)
            self._host.changed()

    async def _pause(self, seconds: float) -> None:
        """Sleep that retiring ends."""
        try:
            async with asyncio.timeout(seconds):
                await self._retired.wait()
        except TimeoutError:
            return

    def _who(self) -> dict[str, object]:
        return {"pod": f"{self._host.namespace}/{self._host.pod}", "container": self.record.name}


async def _within(grace: Grace, action: Callable[[], Awaitable[None]]) -> None:
    try:
        async with grace.limit():
            await action()
    except TimeoutError:
        return
