"""What prefill costs, learned from first events; pure.

A service starts from physics: a token costs 2·parameters operations, and 4·layers·hidden more for every token of
context before it, divided by half of the GPU's peak (a 70B on 8×A100 comes out at a = 0.11 ms, q = 2.1e-9, as measured
elsewhere). From there each replica learns a factor f and an intercept b quickly, and the shape (a, q) of the pair
(profile, GPU type) is corrected slowly. A sample is (uncached, cached, busy seconds); samples of all gateways arrive
with the books, so all of them learn the same.
"""

import math
from typing import Final

from roundhouse_gateway.pick import PrefillCost

USABLE_SHARE: Final = 0.5
"""Of a GPU's peak, what prefill reaches."""

PEAK_FLOPS: Final = {
    "b200": 2250e12, "h200": 989e12, "h100": 989e12, "a100": 312e12, "a10g": 125e12, "a10": 125e12, "l40s": 362e12,
    "l40": 181e12, "l4": 121e12, "t4": 65e12, "v100": 125e12, "mi300x": 1307e12, "mi325x": 1307e12, "mi355x": 2300e12,
}  # fmt: skip
"""Dense 16-bit peak of one GPU, by a part of its type's name."""

UNKNOWN_GPU_FLOPS: Final = 312e12
CPU_FLOPS: Final = 100e9
"""No GPU type given: the local run's CPU, some tens of GFLOP/s usable."""

DEFAULT_PARAMETERS: Final = 8e9
DEFAULT_LAYERS: Final = 32
DEFAULT_HIDDEN: Final = 4096

FORGET_AFTER_S: Final = 5.0
FORGET_S: Final = 15.0
"""A replica that gets no requests is soon taken for as fast as the best one, with this time constant: what was learned
of it in a bad moment would otherwise keep requests, and so better knowledge, away from it for good."""

START_B_S: Final = 0.003
MAX_B_S: Final = 0.5
MAX_F: Final = 50.0
_LARGEST_STEP = 1.0  # of log f, for one sample
_SLOWEST_GAIN = 0.1


def start_shape(parameters: int, layers: int, hidden: int, gpu_type: str) -> tuple[float, float]:
    """(a, q) in seconds before anything was measured; unknown sizes (0) are taken for an 8B model's."""
    flops = USABLE_SHARE * _peak(gpu_type)
    a = 2 * (parameters or DEFAULT_PARAMETERS) / flops
    q = 4 * (layers or DEFAULT_LAYERS) * (hidden or DEFAULT_HIDDEN) / flops
    return a, q


def _peak(gpu_type: str) -> float:
    name = gpu_type.lower()
    if not name or name == "cpu":
        return CPU_FLOPS
    matches = [part for part in PEAK_FLOPS if part in name]
    return PEAK_FLOPS[max(matches, key=len)] if matches else UNKNOWN_GPU_FLOPS


class Shape:
    """(a, q) of one profile on one GPU type: weighted least squares of relative errors, forgetting slowly."""

    FORGET: Final = 0.998
    EVERY: Final = 64
    PULL: Final = 0.2
    RANGE: Final = 8.0

    def __init__(self, a: float, q: float) -> None:
        self.a = a
        self.q = q
        self._start = (a, q)
        self._sums = [0.0] * 5
        self._seen = 0

    def learn(self, uncached: int, cached: int, seconds: float) -> None:
        """``seconds`` of a replica with f = 1 and b = 0, that is (busy − b) ÷ f."""
        if uncached <= 0 or seconds <= 0:
            return
        x, y = uncached / seconds, uncached * (cached + uncached / 2) / seconds
        xx, xy, yy, xt, yt = (s * self.FORGET for s in self._sums)
        self._sums = [xx + x * x, xy + x * y, yy + y * y, xt + x, yt + y]
        self._seen += 1
        if self._seen % self.EVERY == 0:
            self._solve()

    def _solve(self) -> None:
        xx, xy, yy, xt, yt = self._sums
        determinant = xx * yy - xy * xy
        if determinant <= 1e-3 * xx * yy:
            return  # prompts of one length only: their ratio cannot be told
        a, q = (xt * yy - yt * xy) / determinant, (yt * xx - xt * xy) / determinant
        self.a = self._toward(self.a, a, self._start[0])
        self.q = self._toward(self.q, q, self._start[1])

    def _toward(self, current: float, target: float, start: float) -> float:
        target = min(max(target, start / self.RANGE), start * self.RANGE)
        return current * math.exp(self.PULL * math.log(target / current))


class Speed:
    """f and b of one replica. A sample teaches whichever of the two made most of its time."""

    def __init__(self) -> None:
        self.f = 1.0
        self.b = START_B_S
        self.samples = 0

    def cost(self, shape: Shape) -> PrefillCost:
        return PrefillCost(shape.a, shape.q, self.f, self.b)

    def learn(self, shape: Shape, uncached: int, cached: int, busy_s: float) -> None:
        if uncached <= 0 or busy_s <= 0:
            return
        self.samples += 1
        gain = max(_SLOWEST_GAIN, 1 / (self.samples + 1))
        predicted = PrefillCost(shape.a, shape.q).seconds(uncached, cached)
        if self.f * predicted >= self.b:
            measured = max(busy_s - self.b, 0.1 * busy_s)
            step = math.log(measured / (self.f * predicted))
            step = min(max(step, -_LARGEST_STEP), _LARGEST_STEP)
            self.f = min(max(self.f * math.exp(gain * step), 1 / MAX_F), MAX_F)
            shape.learn(uncached, cached, measured / self.f)
        else:
            self.b += gain * (busy_s - self.f * predicted - self.b)
            self.b = min(max(self.b, 0.0), MAX_B_S)

    def follow(self, other: "Speed", share: float) -> None:
        """Forget toward what another replica has learned; a ``share`` of 1 takes it over."""
        self.f *= math.exp(share * math.log(other.f / self.f))
        self.b += share * (other.b - self.b)


def busy_share(elapsed_s: float, ahead_s: float, own_s: float) -> float:
    """Of the time until a first event, what this request's own prefill took.

    Between pick and first event the replica finished what was booked ahead of the request and the request itself;
    each gets its share of the elapsed time.
    """
    total = ahead_s + own_s
    return elapsed_s * own_s / total if total > 0 else 0.0
