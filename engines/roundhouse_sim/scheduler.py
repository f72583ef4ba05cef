"""Continuous batching with chunked prefill, in virtual time and without a clock.

One step decodes one token for every decoding sequence and spends the rest of its token budget on prefill, first come
first served. The driver calls ``plan(now)``, lets the segment's time pass, then ``finish(segment)``; sequences that are
done it hands to ``release``. Steps without prefill are planned many at a time (a `Segment` of several equal steps, cut
short when a request arrives), so that a simulation costs events per request, not per token.

Simplifications: input and output blocks are reserved at admission, so there is no preemption; blocks become reusable
when their prefill is scheduled, as in vLLM, so equal prompts of one step share their work.
"""

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto

from roundhouse_sim.cache import PrefixCache
from roundhouse_sim.cost import CostModel

MIN_PREFILL_TOKENS = 256


class Phase(Enum):
    WAITING = auto()
    PREFILL = auto()
    DECODE = auto()
    DONE = auto()


class Sequence:
    """One prompt on its way. ``keys`` are the chained keys of its full blocks; the driver may append those of the
    answer as it makes it up. ``wake_at`` is the number of generated tokens at which the driver wants control."""

    __slots__ = (
        "cached_tokens", "computed", "generated", "held", "keys", "output_tokens", "phase", "private", "prompt_tokens",
        "wake_at",
    )  # fmt: skip

    def __init__(self, prompt_tokens: int, output_tokens: int, keys: list[int]) -> None:
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.keys = keys
        self.wake_at = output_tokens
        self.phase = Phase.WAITING
        self.cached_tokens = 0
        self.computed = 0
        self.generated = 0
        self.held = 0
        self.private = 0

    @property
    def complete(self) -> bool:
        return self.generated >= self.output_tokens


@dataclass(slots=True)
class Segment:
    """``steps`` consecutive steps from ``start`` on: the first takes ``first_s``, each further ``growth_s`` more."""

    start: float
    first_s: float
    growth_s: float
    steps: int
    chunks: list[tuple[Sequence, int]] = field(default_factory=list)

    @property
    def end(self) -> float:
        return self._end(self.steps)

    def cut(self, now: float) -> None:
        """Shorten to the first step edge at or after ``now``."""
        edges = range(1, self.steps)
        self.steps = 1 + bisect_left(edges, now, key=self._end)

    def rescale(self, now: float, factor: float) -> None:
        """From ``now`` on everything takes ``factor`` times as long; what is done stays done."""
        self.start = now - (now - self.start) * factor
        self.first_s *= factor
        self.growth_s *= factor

    def _end(self, steps: int) -> float:
        return self.start + steps * self.first_s + self.growth_s * steps * (steps - 1) / 2


@dataclass(frozen=True, slots=True)
class Limits:
    """``step_tokens``: token budget of one step. ``sequences``: most that run at once. ``segment_steps``: most pure
    decode steps planned at a time."""

    step_tokens: int = 8192
    sequences: int = 128
    segment_steps: int = 32


class Scheduler:
    def __init__(self, cost: CostModel, cache: PrefixCache, block_size: int, limits: Limits) -> None:
        self.cost = cost
        self.cache = cache
        self.block_size = block_size
        self.limits = limits
        self.waiting: deque[Sequence] = deque()
        self.prefilling: list[Sequence] = []
        self.decoding: list[Sequence] = []
        self.context_tokens = 0

    @property
    def running(self) -> int:
        return len(self.prefilling) + len(self.decoding)

    def submit(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def plan(self, now: float, slowdown: float = 1.0) -> Segment | None:
        """Decide the next steps; None when there is nothing to do."""
        decoding = len(self.decoding)
        chunks = self._prefill(max(MIN_PREFILL_TOKENS, self.limits.step_tokens - decoding))
        if not chunks and not decoding:
            return None
        seconds = self.cost.base(decoding, self.context_tokens)
        for sequence, tokens in chunks:
            seconds += self.cost.chunk(tokens, sequence.computed - tokens)
        steps = 1
        if not chunks:
            steps = min(s.wake_at - s.generated for s in self.decoding)
            steps = max(1, min(steps, self.limits.segment_steps))
        return Segment(now, seconds * slowdown, self.cost.growth(decoding) * slowdown, steps, chunks)

    def finish(self, segment: Segment) -> list[Sequence]:
        """Account for a segment whose time has passed; returns the sequences that got tokens, first tokens last."""
        advanced = self.decoding.copy()
        for sequence in advanced:
            sequence.generated += segment.steps
            sequence.computed += segment.steps
        self.context_tokens += segment.steps * len(advanced)
        for sequence, _ in segment.chunks:
            if sequence.phase is Phase.PREFILL and sequence.computed == sequence.prompt_tokens:
                self.prefilling.remove(sequence)
                self.decoding.append(sequence)
                sequence.phase = Phase.DECODE
                sequence.generated = 1
                self.context_tokens += sequence.computed
                advanced.append(sequence)
        return advanced

    def commit(self, sequence: Sequence) -> None:
        """Make blocks reusable that are computed and whose keys are known."""
        stop = min(len(sequence.keys), sequence.computed // self.block_size)
        if stop > sequence.held:
            self.cache.commit(sequence, sequence.keys, sequence.held, stop)
            sequence.private -= stop - sequence.held
            sequence.held = stop

    def release(self, sequence: Sequence) -> None:
        """The sequence is over, finished or aborted, in whatever phase; its blocks stay for reuse."""
        if sequence.phase is Phase.WAITING:
            self.waiting.remove(sequence)
        elif sequence.phase is not Phase.DONE:
            if sequence.phase is Phase.PREFILL:
                self.prefilling.remove(sequence)
            else:
                self.decoding.remove(sequence)
                self.context_tokens -= sequence.computed
            self.commit(sequence)
            self.cache.release(sequence.keys[: sequence.held], sequence.private)
        sequence.phase = Phase.DONE

    def _prefill(self, budget: int) -> list[tuple[Sequence, int]]:
        chunks: list[tuple[Sequence, int]] = []
        for sequence in self.prefilling:
            budget -= self._chunk(sequence, budget, chunks)
        while budget > 0 and self.waiting and self.running < self.limits.sequences and self._admit(self.waiting[0]):
            sequence = self.waiting.popleft()
            self.prefilling.append(sequence)
            budget -= self._chunk(sequence, budget, chunks)
        return chunks

    def _chunk(self, sequence: Sequence, budget: int, chunks: list[tuple[Sequence, int]]) -> int:
        tokens = min(budget, sequence.prompt_tokens - sequence.computed)
        if tokens > 0:
            sequence.computed += tokens
            self.commit(sequence)
            chunks.append((sequence, tokens))
        return tokens

    def _admit(self, sequence: Sequence) -> bool:
        reusable = (sequence.prompt_tokens - 1) // self.block_size  # the last prompt token is always computed
        matched = self.cache.match(sequence.keys[:reusable])
        total = -(-(sequence.prompt_tokens + sequence.output_tokens) // self.block_size)
        if not self.cache.admit(sequence.keys[:matched], total - matched):
            return False
        sequence.phase = Phase.PREFILL
        sequence.held = matched
        sequence.private = total - matched
        sequence.cached_tokens = sequence.computed = matched * self.block_size
        return True
