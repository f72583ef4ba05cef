"""Everything known of services and replicas, brought up to date from the feed ten times a second.

The request path reads what stands here and in the feed's views; it never waits for Redis. Names: the oldest service
wins a served name that two claim; ``namespace/name`` always works.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, Protocol
from uuid import UUID

from roundhouse_engines.dialect import Usage
from roundhouse_engines.errors import EngineError
from roundhouse_kv.catalogue_store import Catalogue
from roundhouse_kv.errors import KvError
from roundhouse_kv.gateway_feed import ServiceView
from roundhouse_kv.records import Member, Profile
from roundhouse_kv.render import Renderer

from roundhouse_gateway.learning import NAMED_VARIANCE, UNNAMED_VARIANCE, Shape, Speed, start_shape
from roundhouse_gateway.pick import Choice, MeanRequest
from roundhouse_gateway.replica import Replica
from roundhouse_gateway.settings import Patience
from roundhouse_gateway.tokens import CHUNK_BYTES, TextSize, TokenRatios
from roundhouse_gateway.truth import Verdict

log = logging.getLogger(__name__)

LESSONS_AT_ONCE: Final = 64
_MEAN_GAIN = 0.05


class Feed(Protocol):
    """What the fleet reads of `roundhouse_kv.gateway_feed.GatewayFeed`."""

    @property
    def catalogue(self) -> Catalogue | None: ...

    @property
    def views(self) -> Mapping[str, ServiceView]: ...


class Lesson:
    """What one answer told: ``choice`` was the prediction, ``event_tokens`` the cached tokens predicted from events
    alone, ``size`` the prompt's, None when it came as token ids."""

    __slots__ = ("choice", "event_tokens", "size", "usage")

    def __init__(self, choice: Choice, usage: Usage, size: TextSize | None, event_tokens: int) -> None:
        self.choice = choice
        self.usage = usage
        self.size = size
        self.event_tokens = event_tokens


class Service:
    """One InferenceService. ``digests``: profiles that prompts can be rendered under, most used first. ``in_flight`` is
    changed by bookings only."""

    def __init__(self, view: ServiceView, patience: Patience, clock: Callable[[], float]) -> None:
        self.view = view
        self.key = view.entry.key
        self._patience = patience
        self._clock = clock
        self._shapes: dict[tuple[str, str, int], Shape] = {}
        self._renderers: dict[str, Renderer | None] = {}
        self._bad_members: set[str] = set()
        self.replicas: dict[UUID, Replica] = {}
        self.digests = [""]
        self.order: list[Replica] = []
        self.pods: list[UUID] = []
        self.all_predictable = False
        self.ratios = TokenRatios()
        self.mean = MeanRequest(0.05, 500.0)
        self.mean_completion = 200.0
        self._lessons: list[Lesson] = []
        self.in_flight = 0
        self.last_request_at: float | None = None
        self.control_fields: frozenset[str] = frozenset()

    @property
    def model_id(self) -> str:
        entry = self.view.entry
        return entry.served_names[0] if entry.served_names else entry.key

    def renderer(self, digest: str) -> Renderer | None:
        """None when the profile is unknown or not exact."""
        return self._renderers.get(digest)

    def retire(self) -> None:
        """The service is gone; requests in progress go on."""
        for replica in self.replicas.values():
            replica.pool.retire()

    def hear(self, lesson: "Lesson") -> None:
        """An answer came; `refresh` learns from it. Under a flood a part of the answers teaches as much as all."""
        if len(self._lessons) < LESSONS_AT_ONCE:
            self._lessons.append(lesson)

    def refresh(self, now: float) -> None:
        self._compile_profiles()
        members = {m.pod_uid: m for m in self.view.entry.members}
        for uid, replica in list(self.replicas.items()):
            if replica.member.pod_uid not in members:
                replica.pool.retire()
                del self.replicas[uid]
        for member in members.values():
            used = self._replica(member)
            if used is not None:
                self._observe(used, member, now)
        self._learn(now)
        digests = Counter(r.digest for r in self.replicas.values() if r.predictable)
        self.digests = [digest for digest, _ in digests.most_common()] or [""]
        self.order = list(self.replicas.values())
        self.pods = [replica.pod_uid for replica in self.order]
        self.all_predictable = all(replica.predictable for replica in self.order)
        self.control_fields = frozenset[str]().union(*(r.dialect.control_fields for r in self.replicas.values()))

    def _replica(self, member: Member) -> Replica | None:
        if member.pod_uid in self._bad_members:
            return None
        try:
            uid = UUID(member.pod_uid)
            known = self.replicas.get(uid)
            if known is not None and (known.member.address, known.member.port) == (member.address, member.port):
                return known
            made = Replica(member, self._shape("", member), self._patience, self._clock)
        except (ValueError, EngineError) as error:
            self._bad_members.add(member.pod_uid)
            log.error("member_unusable service=%s replica=%s: %s", self.key, member.name, error)
            return None
        if known is not None:
            known.pool.retire()
        self.replicas[uid] = made
        return made

    def _observe(self, replica: Replica, member: Member, now: float) -> None:
        seen = self.view.leases.get(member.replica_uid)
        restarted = replica.observe(member, seen, self.view.books.load(replica.pod_uid, now).requests)
        replica.digest = replica.lease.lease.profile if replica.lease is not None else ""
        shape = self._shape(replica.digest, member)
        if restarted or shape is not replica.shape:
            replica.shape, replica.speed = shape, Speed()
            replica.refresh()
        replica.predictable, replica.reason = self._predictable(replica)

    def _predictable(self, replica: Replica) -> tuple[bool, str]:
        if replica.lease is None or replica.lease.stale:
            return False, "no fresh lease"
        profile = self.view.profiles.get(replica.digest)
        if profile is None:
            return False, "no profile yet"
        if self.renderer(replica.digest) is None:
            return False, profile.reason or "the profile cannot be rendered"
        if replica.truth.history_only:
            return False, "engine reported less cached than its events said"
        if not self.view.index.trusted(replica.pod_uid):
            return False, "index is being reloaded"
        return True, ""

    def _compile_profiles(self) -> None:
        for digest, profile in self.view.profiles.items():
            if digest not in self._renderers:
                self._renderers[digest] = self._compile(profile)
                self.ratios.expect(profile.tokens_per_ascii_byte, profile.tokens_per_other_byte)
        for digest in list(self._renderers):
            if digest not in self.view.profiles:
                del self._renderers[digest]

    def _compile(self, profile: Profile) -> Renderer | None:
        if not profile.exact or profile.text is None:
            return None
        try:
            return Renderer(profile)
        except KvError as error:
            log.error("profile_unusable service=%s digest=%s: %s", self.key, profile.digest, error)
            return None

    def _shape(self, digest: str, member: Member) -> Shape:
        """One for each profile and kind of GPU; while the profile is unknown, an average model's."""
        profile = self.view.profiles.get(digest)
        key = (digest if profile is not None else "", member.gpu_type, member.gpus)
        shape = self._shapes.get(key)
        if shape is None:
            sizes = (profile.parameters, profile.layers, profile.hidden_size) if profile is not None else (0, 0, 0)
            variance = NAMED_VARIANCE if member.gpu_type else UNNAMED_VARIANCE
            shape = self._shapes[key] = Shape(*start_shape(*sizes, member.gpu_type, member.gpus), variance)
        return shape

    def _learn(self, now: float) -> None:
        """From samples of all gateways, and from own answers."""
        for sample in self.view.books.take_samples():
            replica = self.replicas.get(sample.pod_uid)
            if replica is not None:
                replica.speed.learn(replica.shape, sample.uncached_tokens, sample.cached_tokens, sample.busy_s)
                replica.refresh()
        for lesson in self._lessons:
            self._learn_from(lesson, now)
        self._lessons.clear()

    def _learn_from(self, lesson: "Lesson", now: float) -> None:
        choice, usage, size, event_tokens = lesson.choice, lesson.usage, lesson.size, lesson.event_tokens
        if size is not None:
            self.ratios.learn(size, usage.prompt_tokens)
        self.mean_completion += _MEAN_GAIN * (usage.completion_tokens - self.mean_completion)
        context = usage.prompt_tokens + usage.completion_tokens
        self.mean = MeanRequest(
            self.mean.prefill_s + _MEAN_GAIN * (choice.own_s - self.mean.prefill_s),
            self.mean.context_tokens + _MEAN_GAIN * (context - self.mean.context_tokens),
        )
        replica = self.replicas.get(choice.replica.pod_uid)
        if replica is None or usage.cached_tokens is None or not event_tokens:
            return
        tolerance = 2 * replica.block_size + 2 * CHUNK_BYTES * self.ratios.ascii
        verdict = replica.truth.judge(event_tokens, usage.cached_tokens, tolerance, now)
        if verdict is not Verdict.FINE:
            replica.distrusted(verdict)
            self.view.index.distrust(replica.pod_uid, now)


class Fleet:
    """All services; `refresh` is called by one task, everything else by the request path."""

    def __init__(self, feed: Feed, patience: Patience, clock: Callable[[], float]) -> None:
        self._feed = feed
        self._patience = patience
        self._clock = clock
        self._names_of: object = None
        self.services: dict[str, Service] = {}
        self.names: dict[str, Service] = {}

    @property
    def ready(self) -> bool:
        """A catalogue is known, if only from the file, and its names are resolved."""
        return self._names_of is not None

    def resolve(self, model: str) -> Service | None:
        return self.names.get(model)

    def refresh(self, now: float) -> None:
        views = self._feed.views
        for key in [key for key in self.services if key not in views]:
            self.services.pop(key).retire()
        for key, view in views.items():
            service = self.services.get(key)
            if service is None or service.view is not view:
                if service is not None:
                    service.retire()
                service = self.services[key] = Service(view, self._patience, self._clock)
            service.refresh(now)
        if self._feed.catalogue is not self._names_of:
            self._names_of = self._feed.catalogue
            self.names = self._resolve_names()

    def _resolve_names(self) -> dict[str, Service]:
        names: dict[str, Service] = {}
        for service in sorted(self.services.values(), key=lambda s: (s.view.entry.created, s.view.entry.uid)):
            for name in service.view.entry.served_names:
                names.setdefault(name, service)
        for service in self.services.values():
            names[service.key] = service
        return names

    def check(self, now: float) -> None:
        """Idle connections go, and streams on replicas whose drain deadline has passed."""
        for service in self.services.values():
            for replica in service.replicas.values():
                replica.pool.sweep(now)
                deadline = replica.drain_deadline
                if deadline is not None and now >= deadline:
                    for exchange in list(replica.exchanges):
                        exchange.replica_leaving()

    async def close(self) -> None:
        for service in self.services.values():
            for replica in service.replicas.values():
                await replica.pool.close()
