"""Status of an InferenceService: six conditions and a few counts. Pure.

Accepted: the spec can be carried out. Progressing: replicas come closer to the spec; False with reason Complete when
there is nothing to do, with another reason when nothing will happen without a person. Available: enough replicas
answer. Ready: both Accepted and Available. ScalingActive: the operator chooses the number of replicas. LiveData: what
Redis contributes is fresh and readable.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from roundhouse_operator.conditions import Verdict, find_condition, merge_conditions
from roundhouse_operator.diagnosis import Diagnosis
from roundhouse_operator.reasons import RANK, Reason
from roundhouse_operator.replica_view import Fate, ReplicaView
from roundhouse_operator.rollout import Goal
from roundhouse_operator.timestamps import from_timestamp, to_timestamp

COUNTED = frozenset({Fate.NEW, Fate.LIVE, Fate.CRASHING, Fate.HUNG})


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything that the status is worked out from. ``problem``: why Accepted is False, None when it is True;
    ``note``: what to say with it then. ``unreadable``: names of replicas whose agents cannot be understood.
    """

    service: dict[str, Any]
    goal: Goal
    views: Sequence[ReplicaView]
    diagnoses: Sequence[Diagnosis]
    problem: Verdict | None
    note: Verdict | None
    engine: str | None
    url: str
    selector: str
    replacement: dict[str, Any] | None
    progress_deadline_s: int
    live: bool
    unreadable: Sequence[str]
    scaling: dict[str, Any] | None
    scaling_verdict: Verdict
    installation: str
    contender: Mapping[str, Any] | None

    @property
    def before(self) -> dict[str, Any]:
        return self.service.get("status") or {}

    @property
    def counted(self) -> list[ReplicaView]:
        return [view for view in self.views if view.fate in COUNTED and not view.draining]

    @property
    def serving(self) -> list[ReplicaView]:
        return [view for view in self.views if view.serving]

    @property
    def updated(self) -> list[ReplicaView]:
        return [view for view in self.serving if view.revision == self.goal.revision]

    @property
    def complete(self) -> bool:
        return len(self.views) == len(self.updated) == self.goal.replicas

    @property
    def worst(self) -> Diagnosis | None:
        """What explains best why it is not complete."""
        found = [diagnosis for diagnosis in self.diagnoses if diagnosis.reason in RANK]
        if self.replacement and not self.goal.may_replace:
            found.append(Diagnosis(Reason(self.replacement["reason"]), self.replacement["message"]))
        return min(found, key=lambda diagnosis: RANK[diagnosis.reason], default=None)

    def progress_time(self, now: float) -> str:
        """Now, if the spec changed, one more replica is ready, or something is to be done again; else as before."""
        before = self.before
        last = before.get("progressTime")
        progressing = find_condition(before.get("conditions") or [], "Progressing")
        was_complete = progressing is not None and progressing["reason"] in (Reason.COMPLETE, Reason.SCALED_TO_ZERO)
        moved = (
            last is None
            or before.get("observedGeneration") != self.service["metadata"].get("generation")
            or len(self.updated) > before.get("updatedReadyReplicas", 0)
            or (was_complete and not self.complete)
        )
        return to_timestamp(now) if moved or last is None else str(last)


def service_status(situation: Situation, now: float) -> dict[str, Any]:
    generation = int(situation.service["metadata"].get("generation") or 0)
    progress_time = situation.progress_time(now)
    late = now > from_timestamp(progress_time) + situation.progress_deadline_s
    accepted = situation.problem or situation.note or Verdict("Accepted", True, Reason.ACCEPTED)
    progressing = _progressing(situation, late)
    available = _available(situation)
    verdicts = [accepted, progressing, available, _ready(situation, accepted, progressing, available)]
    verdicts += [situation.scaling_verdict, _live_data(situation)]
    found: dict[str, Any] = {
        "observedGeneration": generation,
        "conditions": merge_conditions(verdicts, situation.before.get("conditions") or [], generation, now),
        "url": situation.url or None,
        "engine": situation.engine,
        "revision": situation.goal.revision or None,
        "replicas": len(situation.counted),
        "readyReplicas": len(situation.serving),
        "updatedReadyReplicas": len(situation.updated),
        "selector": situation.selector,
        "scaling": situation.scaling,
        "installation": situation.installation,
        "contender": dict(situation.contender) if situation.contender else None,
        "progressTime": progress_time,
        "replacement": situation.replacement,
    }
    return {name: value for name, value in found.items() if value is not None}


def _progressing(situation: Situation, late: bool) -> Verdict:
    goal, worst = situation.goal, situation.worst
    if situation.problem is not None and not goal.can_make:
        return Verdict("Progressing", False, situation.problem.reason, situation.problem.message)
    if situation.complete:
        if goal.replicas == 0:
            return Verdict("Progressing", False, Reason.SCALED_TO_ZERO, "spec.replicas is 0")
        return Verdict("Progressing", False, Reason.COMPLETE, f"all {goal.replicas} replicas are ready and up to date")
    said = _count(situation)
    if worst is not None:
        said = f"{worst.message} ({said})"
        if worst.stuck:
            return Verdict("Progressing", False, worst.reason, said)
    if late:
        text = f"no progress for {situation.progress_deadline_s} s: {said} — raise rollout.progressDeadlineSeconds if"
        return Verdict("Progressing", False, Reason.ROLLOUT_TIMED_OUT, f"{text} the model needs longer to load")
    return Verdict("Progressing", True, worst.reason if worst else Reason.ROLLING_OUT, said)


def _available(situation: Situation) -> Verdict:
    goal = situation.goal
    if goal.replicas == 0 and goal.can_make:
        return Verdict("Available", False, Reason.SCALED_TO_ZERO, "spec.replicas is 0")
    needed = max(1, goal.replicas - goal.max_unavailable)
    if len(situation.serving) >= needed:
        return Verdict("Available", True, Reason.SERVING, _count(situation))
    return Verdict("Available", False, Reason.NOT_ENOUGH_REPLICAS, f"{_count(situation)}, {needed} needed")


def _ready(situation: Situation, accepted: Verdict, progressing: Verdict, available: Verdict) -> Verdict:
    if not accepted.status:
        return Verdict("Ready", False, accepted.reason, accepted.message)
    if available.status:
        return Verdict("Ready", True, Reason.SERVING, available.message)
    if situation.goal.replicas == 0:
        return Verdict("Ready", False, Reason.SCALED_TO_ZERO, "set spec.replicas to 1 or more to serve")
    if progressing.reason in (Reason.COMPLETE, Reason.ROLLING_OUT):
        return Verdict("Ready", False, available.reason, available.message)
    return Verdict("Ready", False, progressing.reason, progressing.message)


def _live_data(situation: Situation) -> Verdict:
    if situation.live and situation.unreadable:
        text = (
            f"the agents of {', '.join(situation.unreadable)} speak another version than this operator and its "
            "gateways, so requests go there without index and load — upgrade the older of the two"
        )
        return Verdict("LiveData", False, Reason.AGENT_OUTDATED, text)
    if situation.live:
        return Verdict("LiveData", True, Reason.FRESH)
    text = "Redis does not answer; what comes from it is shown as last known — check the Redis of this installation"
    return Verdict("LiveData", None, Reason.REDIS_UNAVAILABLE, text)


def _count(situation: Situation) -> str:
    return f"{len(situation.serving)} of {situation.goal.replicas} replicas ready"
