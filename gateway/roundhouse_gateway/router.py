"""From a request's body to a ranking of replicas: render, hash, match, ask the books, `pick`."""

from collections.abc import Collection, Mapping
from random import Random
from typing import Any, Final
from uuid import UUID

from roundhouse_gateway.bookings import Booking
from roundhouse_gateway.fleet import Service
from roundhouse_gateway.pick import Choice, pick
from roundhouse_gateway.prompt import Prompt, read_prompt
from roundhouse_gateway.replica import Replica
from roundhouse_gateway.tokens import CHUNK_BYTES

MAX_CHOICES: Final = 128
_NOTHING: Final[dict[str, int]] = {}


class Route:
    """One request's way through the fleet. The prompt is read once; `rank` may be asked again for a retry.

    ``depths``: chunks of the prompt that each replica, by name, is predicted to hold, as of the last `rank`."""

    __slots__ = ("_event_depths", "_prompts", "_random", "context_tokens", "depths", "path", "prompt", "service")

    def __init__(self, service: Service, fields: dict[str, Any], path: str, random: Random) -> None:
        self.service = service
        self.path = path
        self._random = random
        digests, tables = service.digests, service.view.tables
        self.prompt: Prompt = read_prompt(fields, path, service.renderer(digests[0]), digests[0], tables)
        self._prompts: dict[str, Prompt] | None = None
        if len(digests) > 1:
            self._prompts = {
                digest: read_prompt(fields, path, service.renderer(digest), digest, tables) for digest in digests
            }
        self.prompt.estimate(service.ratios)
        answer = _answer_tokens(fields, service.mean_completion)
        self.context_tokens = _choices(fields) * int(self.prompt.tokens + answer)
        self.depths = _NOTHING
        self._event_depths = _NOTHING

    def rank(self, now: float, *, without: Collection[UUID] = ()) -> list[Choice]:
        """Best first; ``without`` leaves pods out."""
        service = self.service
        replicas = service.order
        pods = service.pods
        if without:
            replicas = [r for r in replicas if r.pod_uid not in without]
            pods = [r.pod_uid for r in replicas]
        return pick(
            self.prompt,
            [r.facts for r in replicas],
            service.view.books.loads(pods, now),
            self._cached(replicas, now),
            now,
            random=self._random,
            mean=service.mean,
        )

    def open(self, booking: Booking, choice: Choice, replica: Replica, now: float) -> None:
        """Enter the pick into the books, and what the replica will hold because of it."""
        keys = self._prompt_of(replica).keys
        event_tokens = 0
        if keys:
            if not replica.predictable:
                replica.history.add(keys, now)
            keys = keys[self.depths.get(replica.name, 0) :]
            depth = self._event_depths.get(replica.name, 0)
            event_tokens = self.prompt.cached_tokens(CHUNK_BYTES * depth, replica.block_size) if depth else 0
        booking.open(choice, now, replica.epoch, self.context_tokens, keys, event_tokens)

    def _cached(self, replicas: list[Replica], now: float) -> list[int]:
        """Prompt tokens that each replica has cached or will have: by events and by what was just sent there; or by
        history alone."""
        service, view = self.service, self.service.view
        self.depths = self._event_depths = _NOTHING
        held: dict[str, Mapping[int, int]]
        if self._prompts is None:
            keys = self.prompt.keys
            if not keys:
                return [0] * len(replicas)
            matches = view.index.depths(keys)
            if not matches and service.all_predictable and not view.books.expects(keys[0]):
                return [0] * len(replicas)
            held = {service.digests[0]: matches}
        else:
            held = {digest: view.index.depths(p.keys) for digest, p in self._prompts.items() if p.keys}
        self.depths, self._event_depths = {}, {}
        cached: list[int] = []
        for replica in replicas:
            keys = self._prompt_of(replica).keys
            if replica.predictable:
                matched = held.get(replica.digest)
                depth = matched.get(replica.pod_uid.int, 0) if matched else 0
                self._event_depths[replica.name] = depth
            else:
                depth = replica.history.depth(keys, now)
            if depth < len(keys):
                depth += view.books.expected_depth(replica.pod_uid, keys, depth)
            self.depths[replica.name] = depth
            cached.append(self.prompt.cached_tokens(CHUNK_BYTES * depth, replica.block_size) if depth else 0)
        return cached

    def _prompt_of(self, replica: Replica) -> Prompt:
        """Under the replica's own profile when it can be predicted, else under any: history only compares prompts."""
        prompts = self._prompts
        if prompts is None or not replica.predictable:
            return self.prompt
        return prompts.get(replica.digest, self.prompt)


def _choices(fields: dict[str, Any]) -> int:
    """``n``: the prompt is computed once and its context held n times."""
    n = fields.get("n")
    return min(n, MAX_CHOICES) if isinstance(n, int) and n > 1 else 1


def _answer_tokens(fields: dict[str, Any], mean: float) -> float:
    """Tokens of answer that will be held: what answers take on average, unless the request allows fewer."""
    most = fields.get("max_completion_tokens") or fields.get("max_tokens")
    return most if isinstance(most, int) and 0 < most < mean else mean
