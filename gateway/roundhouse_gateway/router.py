"""From a request's body to a ranking of replicas: render, hash, match, ask the books, `pick`."""

from collections.abc import Collection, Mapping
from random import Random
from typing import Any
from uuid import UUID

from roundhouse_gateway.bookings import Booking
from roundhouse_gateway.fleet import Service
from roundhouse_gateway.pick import Choice, PromptFacts, pick
from roundhouse_gateway.prompt import Prompt, read_prompt
from roundhouse_gateway.replica import Replica
from roundhouse_gateway.tokens import CHUNK_BYTES

MAX_CHOICES = 128


class Route:
    """One request's way through the fleet. The prompt is read once; `rank` may be asked again for a retry."""

    __slots__ = (
        "_depths",
        "_event_depths",
        "_facts",
        "_prompts",
        "_random",
        "context_tokens",
        "prompt",
        "service",
        "tokens",
    )

    def __init__(self, service: Service, fields: Mapping[str, Any], path: str, *, random: Random) -> None:
        self.service = service
        self._random = random
        digests = service.digests or [""]
        self._prompts = {digest: read_prompt(fields, path, service.renderer(digest), digest) for digest in digests}
        self.prompt = self._prompts[digests[0]]
        exact = self.prompt.exact_tokens
        self.tokens = exact if exact is not None else service.ratios.tokens(self.prompt.size)
        self.context_tokens = _choices(fields) * round(self.tokens + _answer_tokens(fields, service.mean_completion))
        self._facts = PromptFacts(self.tokens, self.prompt.affinity)
        self._depths: dict[UUID, int] = {}
        self._event_depths: dict[UUID, int] = {}

    def rank(self, now: float, *, without: Collection[UUID] = ()) -> list[Choice]:
        """Best first; ``without`` leaves pods out."""
        service = self.service
        facts = service.facts
        if without:
            facts = [f for f in facts if f.pod_uid not in without]
        self._match(now)
        books = service.view.books
        return pick(
            self._facts,
            facts,
            [books.load(f.pod_uid, now) for f in facts],
            [self._cached(f.pod_uid) for f in facts],
            now,
            random=self._random,
            mean=service.mean,
        )

    def matched_bytes(self, pod: UUID) -> int:
        return CHUNK_BYTES * self._depths.get(pod, 0)

    def open(self, booking: Booking, choice: Choice, replica: Replica, now: float) -> None:
        """Enter the pick into the books, and what the replica will hold because of it."""
        pod = choice.replica.pod_uid
        prompt = self._prompt_of(replica)
        depth = self._depths.get(pod, 0)
        if not replica.predictable:
            replica.history.add(prompt.keys, now)
        booking.open(
            choice,
            now,
            epoch=replica.epoch,
            context_tokens=self.context_tokens,
            expected=prompt.keys[depth:],
            event_tokens=self._tokens_of(CHUNK_BYTES * self._event_depths.get(pod, 0), replica),
        )

    def _match(self, now: float) -> None:
        """How many leading keys each replica holds or will hold: events, then what was just sent there; or history."""
        view = self.service.view
        held = {digest: view.index.match(p.keys) if p.keys else {} for digest, p in self._prompts.items()}
        self._depths, self._event_depths = {}, {}
        for pod, replica in self.service.replicas.items():
            prompt = self._prompt_of(replica)
            if not prompt.keys:
                continue
            if replica.predictable:
                depth = held[replica.digest].get(pod, 0)
                self._event_depths[pod] = depth
            else:
                depth = replica.history.depth(prompt.keys, now)
            if depth < len(prompt.keys):
                depth += view.books.expected_depth(pod, prompt.keys, depth)
            self._depths[pod] = depth

    def _prompt_of(self, replica: Replica) -> Prompt:
        """Under the replica's own profile when it can be predicted, else under any: history only compares prompts."""
        return self._prompts.get(replica.digest, self.prompt) if replica.predictable else self.prompt

    def _cached(self, pod: UUID) -> int:
        depth = self._depths.get(pod, 0)
        return self._tokens_of(CHUNK_BYTES * depth, self.service.replicas[pod]) if depth else 0

    def _tokens_of(self, matched_bytes: int, replica: Replica) -> int:
        return self.service.ratios.cached_tokens(
            self.prompt.size, matched_bytes, block_size=replica.block_size, prompt_tokens=self.tokens
        )


def _choices(fields: Mapping[str, Any]) -> int:
    """``n``: the prompt is computed once and its context held n times."""
    n = fields.get("n")
    return min(n, MAX_CHOICES) if isinstance(n, int) and n > 1 else 1


def _answer_tokens(fields: Mapping[str, Any], mean: float) -> float:
    """Tokens of answer that will be held: what answers take on average, unless the request allows fewer."""
    for name in ("max_completion_tokens", "max_tokens"):
        most = fields.get(name)
        if isinstance(most, int) and most > 0:
            return min(most, mean)
    return mean
