"""ECT: estimated completion from what no gateway can see, the engines' true queues. The mark to measure against."""

from roundhouse_sim.scheduler import Sequence

from benchmarks.routing.policies import BasePolicy
from benchmarks.routing.simulation import Flight, Replica
from benchmarks.routing.traces import BLOCK_TOKENS

MEMORY_WAIT_S = 2.0
MEMORY_BLOCK_S = 0.02
DECODE_STEPS = 20
SLOTS = 64


class EarliestCompletion(BasePolicy):
    """Seconds until the first token there (the step under way, prefill left and waiting, own prefill, the decode steps
    that ride along, a penalty when memory is short) plus what the choice costs those who decode there."""

    def pick(self, flight: Flight) -> int:
        return self.least(lambda replica: self._seconds(replica, flight))

    def _seconds(self, replica: Replica, flight: Flight) -> float:
        scheduler, cost = replica.scheduler, replica.scheduler.cost
        cached = _cached(replica.match(flight.keys), flight)
        own = seconds = cost.chunk(flight.prompt_tokens - cached, cached)
        if replica.segment is not None and replica.segment.chunks:
            seconds += (replica.segment.end - self.simulation.now) / replica.slowdown
        blocks = replica.cache.used + _blocks(flight, cached)
        for running in scheduler.prefilling:
            seconds += cost.chunk(running.prompt_tokens - running.computed, running.computed)
        for waiting in scheduler.waiting:
            known = _cached(replica.cache.match(waiting.keys), waiting)
            seconds += cost.chunk(waiting.prompt_tokens - known, known)
            blocks += _blocks(waiting, known)
        decoding = len(scheduler.decoding)
        step = cost.base(decoding, scheduler.context_tokens)
        seconds += step * (seconds / (cost.prefill_token_s * scheduler.limits.step_tokens) + 1)
        if (short := blocks - replica.cache.blocks) > 0:
            seconds += MEMORY_WAIT_S + MEMORY_BLOCK_S * short
        others = own * decoding / SLOTS / 2 + DECODE_STEPS * cost.decode_context_s * scheduler.context_tokens
        return (seconds + others) * replica.slowdown


def _cached(matched: int, sequence: Sequence) -> int:
    return min(matched * BLOCK_TOKENS, sequence.prompt_tokens - 1)


def _blocks(sequence: Sequence, cached: int) -> int:
    """Blocks that it will take beyond those it finds."""
    return -(-(sequence.prompt_tokens + sequence.output_tokens) // BLOCK_TOKENS) - cached // BLOCK_TOKENS
