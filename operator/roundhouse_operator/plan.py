"""What to do about one InferenceService, given what is there: the whole decision, without any I/O.

``plan`` works on both levels at once: the service's EngineReplicas (how many, which revision, who goes) and each
EngineReplica's pod. It knows no history but what the objects' statuses hold, so it may run at any time, any number of
times, in any process: it converges from whatever it finds.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from roundhouse_engines.errors import BadEngineSpec
from roundhouse_kv.records import ServiceEntry

from roundhouse_operator.api.parse import parse_service
from roundhouse_operator.api.service import InferenceService
from roundhouse_operator.autoscale import Bounds, Decision, decide
from roundhouse_operator.autoscale import Situation as Scale
from roundhouse_operator.autoscaler import Subject
from roundhouse_operator.cluster import ENGINE_REPLICA, POD, Kind, Obj
from roundhouse_operator.conditions import Verdict
from roundhouse_operator.diagnosis import Diagnosis, diagnose
from roundhouse_operator.effective import effective, launch_plan
from roundhouse_operator.errors import InvalidObject
from roundhouse_operator.live import Live
from roundhouse_operator.membership import service_entry
from roundhouse_operator.names import replica_name, service_labels
from roundhouse_operator.pod_facts import is_overdue, is_terminating, owner_uid
from roundhouse_operator.reasons import Reason
from roundhouse_operator.render import render_drain, render_pod, render_replica
from roundhouse_operator.replica_status import replica_status
from roundhouse_operator.replica_view import Fate, ReplicaView, view_replicas
from roundhouse_operator.revision import revision
from roundhouse_operator.rollout import Goal, Moves, choose
from roundhouse_operator.scaling_status import fixed_verdict, remembered, scaling_verdict
from roundhouse_operator.service_status import COUNTED, Situation, service_status
from roundhouse_operator.settings import Settings
from roundhouse_operator.timestamps import from_timestamp, to_timestamp


@dataclass(frozen=True, slots=True)
class Observed:
    """What the API server has. ``replicas`` and ``pods`` may hold those of a former service of the same name.

    ``missing_secret``: the Secret that the spec names and that is not there. ``lost_names``: served names that another
    service has, with its ``namespace/name``. ``refusals``: the API's words when it refused to create that object.
    ``conflict``: what somebody else manages in our own objects. ``contender``: another installation that wants it.
    """

    service: Obj
    replicas: tuple[Obj, ...] = ()
    pods: tuple[Obj, ...] = ()
    missing_secret: str = ""
    lost_names: Mapping[str, str] = field(default_factory=dict)
    refusals: Mapping[str, str] = field(default_factory=dict)
    conflict: str = ""
    contender: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Deletion:
    """Of this very object; another one that took its name is left alone."""

    kind: Kind
    namespace: str
    name: str
    uid: str
    grace_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class DrainOrder:
    """Tell this replica's agent to drain until ``deadline`` (Unix seconds). Told again until it has drained."""

    replica_uid: str
    address: str
    deadline: float


@dataclass(frozen=True, slots=True)
class Undrain:
    """Tell this replica's agent to go on serving; once it has agreed, apply ``mark``, which takes the deadline away."""

    replica_uid: str
    address: str
    mark: Obj


@dataclass(frozen=True, slots=True)
class Plan:
    """Carried out in the order of the fields, statuses last and only where they differ.

    ``statuses`` by EngineReplica name. ``entry`` goes into the catalogue. ``scaling``: whose loads to follow.
    """

    create: tuple[tuple[Kind, Obj], ...] = ()
    apply: tuple[tuple[Kind, Obj], ...] = ()
    delete: tuple[Deletion, ...] = ()
    drains: tuple[DrainOrder, ...] = ()
    undrains: tuple[Undrain, ...] = ()
    status: dict[str, Any] | None = None
    statuses: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    entry: ServiceEntry | None = None
    scaling: Subject | None = None
    requeue_after: float | None = None


def plan(observed: Observed, live: Live, now: float, settings: Settings) -> Plan:
    return _Planner(observed, live, now, settings).plan()


class _Planner:
    """One run of `plan`; the attributes are what its steps share."""

    def __init__(self, observed: Observed, live: Live, now: float, settings: Settings) -> None:
        self.observed = observed
        self.live = live
        self.now = now
        self.settings = settings
        self.meta = observed.service["metadata"]
        self.before: dict[str, Any] = observed.service.get("status") or {}
        uid = self.meta["uid"]
        mine = [obj for obj in observed.replicas if owner_uid(obj) == uid]
        self.views = view_replicas(mine, observed.pods, live, now, settings)
        present = {obj["metadata"]["uid"] for obj in observed.replicas}
        orphans = [pod for pod in observed.pods if owner_uid(pod) not in present and is_terminating(pod)]
        self.orphans = [pod for pod in orphans if not is_overdue(pod, now, settings.overdue_s)]
        self.service: InferenceService | None = None
        self.problem = self._read_spec()
        self.decision = self._decide()
        self.diagnoses = [diagnose(view, now, observed.refusals) for view in self.views]

    def plan(self) -> Plan:
        if is_terminating(self.observed.service):
            return Plan(entry=self._entry())
        goal = self._goal()
        moves = choose(self.views, len(self.orphans), goal, self.now, self.settings)
        replacement = self._replacement(moves, goal)
        if replacement != self.before.get("replacement"):
            moves = replace(moves, make=0)  # one was given up just now: its successor waits
        situation = self._situation(goal, replacement)
        status = service_status(situation, self.now)
        return Plan(
            create=(*self._new_replicas(moves, goal), *self._new_pods(moves)),
            apply=tuple(self._drain_marks(moves)),
            delete=tuple(self._deletions(moves)),
            drains=tuple(self._drain_orders(moves)),
            undrains=tuple(Undrain(view.uid, view.address, render_drain(view.obj, None)) for view in moves.keep),
            status=status,
            statuses={
                view.name: replica_status(view, diagnosis, self.now)
                for view, diagnosis in zip(self.views, self.diagnoses, strict=True)
                if view not in moves.drop and view not in moves.kill
            },
            entry=self._entry(),
            scaling=self._subject(),
            requeue_after=self._requeue_after(moves, situation, status),
        )

    # What is asked for.

    def _read_spec(self) -> Verdict | None:
        """Sets ``service``; returns why the spec cannot be carried out, None when it can."""
        try:
            self.service = parse_service(self.observed.service)
            launch_plan(self.service, self.settings)
        except (InvalidObject, BadEngineSpec) as error:
            return Verdict("Accepted", False, Reason.INVALID_SPEC, str(error))
        if self.observed.missing_secret:
            text = (
                f"Secret {self.observed.missing_secret} (spec.modelSecret) does not exist — create it with a key token"
            )
            return Verdict("Accepted", False, Reason.SECRET_NOT_FOUND, text)
        if self.observed.lost_names:
            name, owner = next(iter(self.observed.lost_names.items()))
            own = f"{self.meta['namespace']}/{self.meta['name']}"
            text = f"{owner} is older and serves {name} — change spec.servedNames; {own} works meanwhile"
            return Verdict("Accepted", False, Reason.SERVED_NAME_CONFLICT, text)
        return None

    def _goal(self) -> Goal:
        blocked = self.problem is not None and self.problem.reason != Reason.SERVED_NAME_CONFLICT
        replacement = self.before.get("replacement")
        may_replace = replacement is None or self.now >= self._next_attempt(replacement)
        if self.service is None:
            kept = sum(view.fate not in (Fate.STOPPING, Fate.OVERDUE) for view in self.views)
            return Goal(kept, str(self.before.get("revision") or ""), 0, 1, can_make=False, may_replace=may_replace)
        spec, rollout = self.service.spec, self.service.spec.rollout
        surge = rollout.max_surge if rollout else None
        unavailable = rollout.max_unavailable if rollout else None
        return Goal(
            replicas=self.decision.replicas if self.decision else 1 if spec.replicas is None else spec.replicas,
            revision=revision(spec),
            max_surge=surge or 0,
            max_unavailable=1 if unavailable is None else unavailable,
            can_make=not blocked,
            may_replace=may_replace,
        )

    def _bounds(self) -> Bounds | None:
        scaling = self.service.spec.scaling if self.service else None
        return Bounds.of(scaling) if scaling else None

    def _decide(self) -> Decision | None:
        """None when the spec says how many."""
        bounds = self._bounds()
        return decide(self.live.loads, bounds, self._scale(), self.now) if bounds else None

    def _scale(self, current: int | None = None) -> Scale:
        """``current`` as decided now; by default as decided before."""
        known = (self.before.get("scaling") or {}).get("replicas") if current is None else current
        existing = sum(view.fate in COUNTED and not view.draining for view in self.views)
        serving = sum(view.serving for view in self.views)
        return Scale(known, existing, settled=serving == len(self.views) == known and not self.orphans)

    def _subject(self) -> Subject | None:
        bounds = self._bounds()
        if bounds is None or self.decision is None:
            return None
        serving = {view.uid: view.pod["metadata"]["uid"] for view in self.views if view.serving and view.pod}
        return Subject(bounds, self._scale(self.decision.replicas), serving)

    def _next_attempt(self, replacement: Mapping[str, Any]) -> float:
        """Doubles with every replica in a row that never became ready."""
        attempts, settings = int(replacement.get("attempts", 0)), self.settings
        if attempts == 0:
            return 0.0
        wait: float = min(settings.replace_backoff_s * 2 ** min(attempts - 1, 30), settings.replace_backoff_max_s)
        return from_timestamp(replacement["time"]) + wait

    def _replacement(self, moves: Moves, goal: Goal) -> dict[str, Any] | None:
        """Forgotten once all replicas are ready; counts replicas that were given up before they ever were."""
        before: dict[str, Any] | None = self.before.get("replacement")
        if sum(view.serving for view in self.views) >= goal.replicas:
            before = None
        failed = [view for view in moves.lost if not view.was_ready]
        if not failed:
            return before
        diagnosis = self._diagnosis(failed[-1])
        return {
            "attempts": int(before["attempts"] if before else 0) + 1,
            "time": to_timestamp(self.now),
            "reason": str(diagnosis.reason),
            "message": diagnosis.message,
        }

    def _diagnosis(self, view: ReplicaView) -> Diagnosis:
        return self.diagnoses[self.views.index(view)]

    # What to do.

    def _new_replicas(self, moves: Moves, goal: Goal) -> Iterable[tuple[Kind, Obj]]:
        if self.service is None:
            return
        taken = {obj["metadata"]["name"] for obj in (*self.observed.replicas, *self.observed.pods)}
        for _ in range(moves.make):
            name = replica_name(self.meta["name"], self.meta["uid"], goal.revision, taken)
            taken.add(name)
            yield ENGINE_REPLICA, render_replica(self.service, goal.revision, name, self.settings)

    def _new_pods(self, moves: Moves) -> Iterable[tuple[Kind, Obj]]:
        for view in self.views:
            if view.fate is Fate.NEW and view not in moves.drop:
                yield POD, render_pod(view.obj)

    def _drain_marks(self, moves: Moves) -> Iterable[tuple[Kind, Obj]]:
        for view in moves.drain:
            if not view.draining:
                yield ENGINE_REPLICA, render_drain(view.obj, to_timestamp(self._deadline()))

    def _drain_orders(self, moves: Moves) -> Iterable[DrainOrder]:
        for view in moves.drain:
            if view.address:
                yield DrainOrder(view.uid, view.address, view.deadline or self._deadline())

    def _deadline(self) -> float:
        timeout = effective(self.service.spec, self.settings).drain_s if self.service else self.settings.drain_s
        return float(int(self.now) + timeout)

    def _deletions(self, moves: Moves) -> Iterable[Deletion]:
        """The pod first: if only that succeeds, the EngineReplica has lost its pod and goes the next time."""
        for view in (*moves.drop, *moves.kill):
            grace = self.settings.hung_grace_s if view in moves.kill else None
            if view.pod is not None and not is_terminating(view.pod):
                yield self._deletion(POD, view.pod, grace)
            yield self._deletion(ENGINE_REPLICA, view.obj)

    def _deletion(self, kind: Kind, obj: Obj, grace: int | None = None) -> Deletion:
        meta = obj["metadata"]
        return Deletion(kind, meta["namespace"], meta["name"], meta["uid"], grace)

    # What to say.

    def _situation(self, goal: Goal, replacement: dict[str, Any] | None) -> Situation:
        rollout = self.service.spec.rollout if self.service else None
        deadline = rollout.progress_deadline_seconds if rollout else None
        return Situation(
            service=self.observed.service,
            goal=goal,
            views=self.views,
            diagnoses=self.diagnoses,
            problem=self.problem,
            note=self._note(),
            engine=effective(self.service.spec, self.settings).engine if self.service else self.before.get("engine"),
            url=self.settings.gateway_url,
            selector=",".join(f"{name}={value}" for name, value in sorted(service_labels(self.meta["name"]).items())),
            replacement=replacement,
            progress_deadline_s=self.settings.progress_deadline_s if deadline is None else deadline,
            live=self.live.healthy,
            unreadable=tuple(view.name for view in self.views if view.uid in self.live.unreadable),
            scaling=self._scaling_status(),
            scaling_verdict=self._scaling_verdict(goal),
            installation=self.settings.installation,
            contender=self.observed.contender,
        )

    def _scaling_status(self) -> dict[str, Any] | None:
        if self.decision is None:
            return self.before.get("scaling") if self.service is None else None
        known = (self.before.get("scaling") or {}).get("replicas")
        return remembered(self.before, self.decision, known, to_timestamp(self.now))

    def _scaling_verdict(self, goal: Goal) -> Verdict:
        subject = self._subject()
        if subject is None:
            return fixed_verdict(goal.replicas)
        return scaling_verdict(self.live.loads, subject.bounds, subject.situation, self.now)

    def _note(self) -> Verdict | None:
        """What the spec costs, said once where people look."""
        if self.service is None or self.problem is not None:
            return None
        if self.observed.conflict:
            text = f"{self.observed.conflict} — leave these fields to Roundhouse, or delete the object"
            return Verdict("Accepted", True, Reason.FIELD_CONFLICT, text)
        if self.observed.contender is not None:
            text = (
                f"installation {self.observed.contender['installation']} watches this namespace as well — take the "
                "namespace out of watchNamespaces of one of them"
            )
            return Verdict("Accepted", True, Reason.INSTALLATION_CONFLICT, text)
        spec = self.service.spec
        in_pod = spec.model_cache.empty_dir is not None if spec.model_cache else not self.settings.default_cache_path
        if in_pod and launch_plan(self.service, self.settings).needs_model:
            text = "the model cache lives in the pod: each new replica downloads the model — see spec.modelCache"
            return Verdict("Accepted", True, Reason.ACCEPTED, text)
        return None

    def _entry(self) -> ServiceEntry:
        names: list[str] = [self.meta["name"]]
        if self.service is not None and self.service.spec.served_names:
            names = self.service.spec.served_names
        elif self.service is None and self.live.entry is not None:
            names = list(self.live.entry.served_names)
        kept = [name for name in names if name not in self.observed.lost_names]
        return service_entry(self.observed.service, kept, self.views, self.orphans, self.live.entry)

    # When to look again although nothing is reported.

    def _requeue_after(self, moves: Moves, situation: Situation, status: Mapping[str, Any]) -> float | None:
        now, settings = self.now, self.settings
        times: list[float] = []
        if moves.drain or moves.keep:
            times.append(now + settings.drain_poll_s)
        if self.observed.missing_secret or self.observed.refusals or self.observed.conflict:
            times.append(now + settings.retry_s)
        replacement = situation.replacement
        if replacement is not None and replacement["attempts"]:
            times.append(self._next_attempt(replacement))
        if not situation.complete:
            times.append(from_timestamp(status["progressTime"]) + situation.progress_deadline_s + 1)
        for obj in (*(view.pod for view in self.views if view.pod), *self.orphans):
            if is_terminating(obj):
                times.append(from_timestamp(obj["metadata"]["deletionTimestamp"]) + settings.overdue_s + 1)
        if any(diagnosis.reason is Reason.MODEL_FETCH_FAILED for diagnosis in self.diagnoses):
            times.append(now + settings.retry_s)
        later = [time - now for time in times if time > now]
        return min(later) if later else None
