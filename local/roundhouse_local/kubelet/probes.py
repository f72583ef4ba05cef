"""Startup, readiness and liveness: when a probe's results count. The check itself comes from outside."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from roundhouse_operator.cluster import Obj


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one check; ``message`` says what went wrong."""

    ok: bool
    message: str = ""


@dataclass(frozen=True, slots=True)
class ProbeRule:
    """Seconds and counts of one probe, with Kubernetes' defaults."""

    initial_delay_s: float
    period_s: float
    timeout_s: float
    successes: int
    failures: int
    grace_s: float | None

    @classmethod
    def of(cls, probe: Obj) -> "ProbeRule":
        return cls(
            initial_delay_s=probe.get("initialDelaySeconds", 0),
            period_s=probe.get("periodSeconds") or 10,
            timeout_s=probe.get("timeoutSeconds") or 1,
            successes=probe.get("successThreshold") or 1,
            failures=probe.get("failureThreshold") or 3,
            grace_s=probe.get("terminationGracePeriodSeconds"),
        )


class Verdict:
    """Counts results in a row; ``ok`` changes only when a threshold is reached. None: nothing decided yet."""

    def __init__(self, rule: ProbeRule) -> None:
        self._rule = rule
        self._run = 0
        self._last: bool | None = None
        self.ok: bool | None = None

    def feed(self, ok: bool) -> bool:
        """True when this result reached a threshold."""
        self._run = self._run + 1 if ok == self._last else 1
        self._last = ok
        if self._run < (self._rule.successes if ok else self._rule.failures):
            return False
        self.ok = ok
        return True


Check = Callable[[float], Awaitable[Outcome]]


async def run_probe(rule: ProbeRule, check: Check, decided: Callable[[Outcome], None], *, once: bool = False) -> None:
    """Check each period and tell every decision; with ``once`` the first success is the last check.

    A check that takes longer than its timeout has failed.
    """
    verdict = Verdict(rule)
    await asyncio.sleep(rule.initial_delay_s)
    loop = asyncio.get_running_loop()
    while True:
        begun = loop.time()
        outcome = await _checked(rule, check)
        if verdict.feed(outcome.ok):
            decided(outcome)
            if once and outcome.ok:
                return
        await asyncio.sleep(max(0.0, begun + rule.period_s - loop.time()))


async def _checked(rule: ProbeRule, check: Check) -> Outcome:
    try:
        async with asyncio.timeout(rule.timeout_s):
            return await check(rule.timeout_s)
    except TimeoutError:
        return Outcome(False, f"no answer within {rule.timeout_s:g} s")
