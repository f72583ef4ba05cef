"""Which replicas to make, empty, stop and keep: the arithmetic of scaling and rolling. Pure.

Never more than ``replicas + max_surge`` hold hardware; of what works, nothing is taken away by choice below
``replicas - max_unavailable``. What does not work is taken away first and freely: it serves nobody. Whoever may hold
requests is drained before it is deleted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from roundhouse_operator.replica_view import Fate, ReplicaView
from roundhouse_operator.settings import Settings

_LOST = frozenset({Fate.GONE, Fate.ENDED, Fate.OVERDUE})
"""Their hardware is free (or beyond reach) already."""


@dataclass(frozen=True, slots=True)
class Goal:
    """``can_make``: new replicas can be made; while not, old ones stand in for them.

    ``may_replace``: the back-off after replicas that never became ready is over.
    """

    replicas: int
    revision: str
    max_surge: int
    max_unavailable: int
    can_make: bool = True
    may_replace: bool = True


@dataclass(frozen=True, slots=True)
class Moves:
    """``make``: how many new ones. ``drain`` and ``keep``: start or go on, and call off. ``drop``: delete now.

    ``kill``: delete with a short grace. ``lost``: of the dropped, those that did not stop by our choice.
    """

    make: int = 0
    drain: tuple[ReplicaView, ...] = ()
    keep: tuple[ReplicaView, ...] = ()
    drop: tuple[ReplicaView, ...] = ()
    kill: tuple[ReplicaView, ...] = ()
    lost: tuple[ReplicaView, ...] = ()


def choose(views: Sequence[ReplicaView], orphans: int, goal: Goal, now: float, settings: Settings) -> Moves:
    """``orphans``: pods of deleted EngineReplicas that still hold hardware."""
    lost = [view for view in views if view.fate in _LOST]
    stopping = [view for view in views if view.fate is Fate.STOPPING]
    hung = _hung_to_kill(views, len(stopping) + orphans, goal, settings)
    crashed = [view for view in views if view.fate is Fate.CRASHING and goal.can_make and goal.may_replace]
    failed = [*hung, *crashed]
    here = [view for view in views if view not in lost and view not in stopping and view not in failed]

    stops = _to_stop(here, goal)
    drops = [view for view in stops if _may_drop(view, now, settings)]
    drains = [view for view in stops if view not in drops]
    stays = [view for view in here if view not in stops and _counts(view, goal)]
    keeps = [view for view in stays if view.draining]

    make = 0
    if goal.can_make and goal.may_replace:
        room = goal.replicas + goal.max_surge - (len(views) - len(lost)) - orphans
        make = max(0, min(goal.replicas - len(stays), room))
    return Moves(
        make=make,
        drain=tuple(drains),
        keep=tuple(keeps),
        drop=(*lost, *crashed, *drops),
        kill=tuple(hung),
        lost=(*lost, *crashed, *hung),
    )


def _to_stop(here: Sequence[ReplicaView], goal: Goal) -> list[ReplicaView]:
    """Those that go, best victims first, as far as what must keep serving allows."""
    current = [view for view in here if _counts(view, goal)]
    surplus = max(0, len(current) - goal.replicas)
    leaving = [view for view in here if view not in current]
    leaving += sorted(current, key=lambda view: _worth(view, goal))[:surplus]
    spare = sum(view.serving for view in here) - max(0, goal.replicas - goal.max_unavailable)
    stops = []
    for view in sorted(leaving, key=lambda view: _worth(view, goal)):
        if view.serving:
            if spare <= 0:
                continue
            spare -= 1
        stops.append(view)
    return stops


def _counts(view: ReplicaView, goal: Goal) -> bool:
    """Belongs to what the spec asks for. A drained replica never comes back."""
    if view.drained and view.draining:
        return False
    return view.revision == goal.revision or not goal.can_make


def _worth(view: ReplicaView, goal: Goal) -> tuple[bool, bool, bool, int, float, str]:
    """Least first: already draining, not ready, of an old revision, idle, young."""
    return (
        not view.draining,
        view.ready,
        view.revision == goal.revision,
        view.in_flight,
        -view.created,
        view.name,
    )


def _may_drop(view: ReplicaView, now: float, settings: Settings) -> bool:
    if view.pod is None or not view.was_ready:
        return True
    if not view.draining or view.deadline is None:
        return False
    return view.drained or now > view.deadline + settings.continuation_s


def _hung_to_kill(views: Sequence[ReplicaView], stopping: int, goal: Goal, settings: Settings) -> list[ReplicaView]:
    """A few at a time; and none when so many look hung at once that the cause must be elsewhere."""
    hung = [view for view in views if view.fate is Fate.HUNG]
    running = [view for view in views if view.fate in (Fate.LIVE, Fate.HUNG)]
    if len(hung) > max(1.0, settings.hung_share * len(running)):
        return []
    return hung[: max(0, max(1, goal.max_unavailable) - stopping)]
