"""Other routers, each from its published rule, with cache knowledge that is exact and instant (better than theirs)."""

from bisect import bisect_right
from collections import OrderedDict

from xxhash import xxh3_64_intdigest

from benchmarks.routing.policies import BasePolicy
from benchmarks.routing.simulation import Flight, Simulation
from benchmarks.routing.traces import BLOCK_TOKENS


class SglangCacheAware(BasePolicy):
    """SGLang model gateway, ``cache_aware`` with its command line's defaults.

    A tree per worker of what the router sent there, without feedback of evictions. Imbalanced (max − min > ``absolute``
    and max > ``relative`` · min) → fewest in flight; else the longest match if it covers more than ``threshold`` of
    the prompt; else the worker with the smallest tree. 2²⁶ characters a tree are taken for 2²⁴ tokens.
    """

    def __init__(
        self, threshold: float = 0.3, absolute: int = 64, relative: float = 1.5, tree_tokens: int = 2**24
    ) -> None:
        self._threshold = threshold
        self._absolute = absolute
        self._relative = relative
        self._tree_blocks = tree_tokens // BLOCK_TOKENS

    def attach(self, simulation: Simulation) -> None:
        super().attach(simulation)
        self._trees: list[OrderedDict[int, None]] = [OrderedDict() for _ in simulation.replicas]

    def pick(self, flight: Flight) -> int:
        loads = [replica.in_flight for replica in self.simulation.replicas]
        if max(loads) - min(loads) > self._absolute and max(loads) > self._relative * min(loads):
            choice = self.least(lambda replica: loads[replica.index])
        else:
            matches = [self._match(tree, flight) for tree in self._trees]
            if max(matches) > self._threshold * max(1, len(flight.keys)):
                choice = self.least(lambda replica: -matches[replica.index])
            else:
                choice = self.least(lambda replica: len(self._trees[replica.index]))
        self._insert(self._trees[choice], flight)
        return choice

    def _match(self, tree: "OrderedDict[int, None]", flight: Flight) -> int:
        return next((depth for depth, key in enumerate(flight.keys) if key not in tree), len(flight.keys))

    def _insert(self, tree: "OrderedDict[int, None]", flight: Flight) -> None:
        for key in reversed(flight.keys):
            tree[key] = None
            tree.move_to_end(key)
        while len(tree) > self._tree_blocks:
            tree.popitem(last=False)


class LlmD(BasePolicy):
    """llm-d's scorers at the router chart's weights: prefix share 3, waiting queue 2 (min-max), KV in use 2. Queue and
    KV come from metrics that are up to ``scrape_s`` old; what was just sent counts as held (speculative indexing)."""

    def __init__(self, scrape_s: float = 0.05, prefix: float = 3.0, queue: float = 2.0, kv: float = 2.0) -> None:
        self._scrape_s = scrape_s
        self._weights = (prefix, queue, kv)

    def attach(self, simulation: Simulation) -> None:
        super().attach(simulation)
        self._scraped_at = float("-inf")

    def pick(self, flight: Flight) -> int:
        replicas = self.simulation.replicas
        if self.simulation.now - self._scraped_at >= self._scrape_s:
            self._scraped_at = self.simulation.now
            self._queues = [replica.waiting for replica in replicas]
            self._used = [replica.kv_used for replica in replicas]
        low, high = min(self._queues), max(self._queues)
        prefix, queue, kv = self._weights
        blocks = max(1, len(flight.keys))
        shortness = [1.0 if high == low else (high - each) / (high - low) for each in self._queues]
        return self.least(
            lambda replica: (
                -(
                    prefix * replica.match(flight.keys) / blocks
                    + queue * shortness[replica.index]
                    + kv * (1 - self._used[replica.index])
                )
            )
        )


class Dynamo(BasePolicy):
    """Dynamo's KV router: ``weight`` · (prefill blocks not yet done there + own uncached) + blocks of active requests,
    all from the router's own books. It learns of a first token from the worker, streaming or not."""

    def __init__(self, weight: float = 1.0) -> None:
        self._weight = weight

    def attach(self, simulation: Simulation) -> None:
        super().attach(simulation)
        self._prefill = [0.0] * len(simulation.replicas)
        self._active = [0] * len(simulation.replicas)
        self._own: dict[int, float] = {}

    def pick(self, flight: Flight) -> int:
        needed = [
            flight.prompt_tokens / BLOCK_TOKENS - replica.cache.match(flight.keys)
            for replica in self.simulation.replicas
        ]
        choice = self.least(
            lambda replica: (
                self._weight * (self._prefill[replica.index] + needed[replica.index]) + self._active[replica.index]
            )
        )
        self._prefill[choice] += needed[choice]
        self._active[choice] += -(-flight.prompt_tokens // BLOCK_TOKENS)
        self._own[flight.number] = needed[choice]
        return choice

    def first(self, flight: Flight) -> None:
        self._prefill[flight.replica] -= self._own.pop(flight.number, 0.0)

    def ended(self, flight: Flight) -> None:
        self.first(flight)
        self._active[flight.replica] -= -(-flight.prompt_tokens // BLOCK_TOKENS)


class BoundedLoadHash(BasePolicy):
    """KubeAI: consistent hashing with bounded loads. The key is the beginning of the first user message, here the block
    after the shared system prompt; 256 points a replica; the next replica on the ring whose requests in flight are at
    most 1.25 times the mean."""

    POINTS = 256
    LOAD_FACTOR = 1.25

    def attach(self, simulation: Simulation) -> None:
        super().attach(simulation)
        self._ring = sorted(
            (xxh3_64_intdigest(f"{replica.index}/{point}".encode()), replica.index)
            for replica in simulation.replicas
            for point in range(self.POINTS)
        )

    def pick(self, flight: Flight) -> int:
        replicas = self.simulation.replicas
        key = flight.keys[1] if len(flight.keys) > 1 else flight.number
        bound = (sum(replica.in_flight for replica in replicas) + 1) / len(replicas) * self.LOAD_FACTOR
        start = bisect_right(self._ring, (xxh3_64_intdigest(key.to_bytes(8, "little")), len(replicas)))
        for step in range(len(self._ring)):
            index = self._ring[(start + step) % len(self._ring)][1]
            if replicas[index].in_flight <= bound:
                return index
        return self._ring[start % len(self._ring)][1]
