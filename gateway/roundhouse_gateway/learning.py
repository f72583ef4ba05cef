"""What prefill costs, learned from first events; pure.

A service starts from physics: a token costs 2·parameters operations, and 4·layers·hidden more for every token of
context before it, divided by half of the GPU's peak (a 70B on 8×A100 comes out at a = 0.11 ms, q = 2.1e-9, as measured
elsewhere). What it does not know (quantisation, kernels, GPUs that the catalogue does not count) is a factor of a few.

From there a sample (uncached, cached, busy seconds) corrects five logarithms: a, q and b of the shape, which all
replicas of one profile on one GPU type share, and what this replica makes of them, its factor on prefill and its
factor on b. Each moves by its share of the predicted time and by how uncertain it still is (a Kalman filter whose
covariance is kept diagonal): the first few samples of a service settle the shape, the first few of a replica its
factor, and later ones move both little. Surprises are clipped, upwards more than downwards: a request that shared its
steps with others took longer than its prefill, none took less.

What the factors have in common is moved into the shape, so that a new replica starts in the middle of the fleet and
not where the physics put it. A replica that gets no samples while others do is slowly taken for average again, and for
uncertain, or one bad minute would keep it avoided for ever. Samples of all gateways arrive with the books, so all of
them learn the same.
"""

import math
from typing import Final
from weakref import WeakSet

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

START_B_S: Final = 0.003
MAX_B_S: Final = 0.5
MAX_F: Final = 50.0

SHAPE_RANGE: Final = 1e6
"""How far from the start (a, q) may go. Wide: hardware that nobody named, or a simulated model, may be anything."""

NAMED_VARIANCE: Final = 1.0
UNNAMED_VARIANCE: Final = 16.0
_OFFSET_VARIANCE: Final = 1.0
_FACTOR_VARIANCE: Final = 0.1
_NOISE: Final = 0.1
"""Variances of logarithms: what is not known at the start (of a shape on a GPU with a name, and on hardware that nobody
named), and what differs between samples that should be equal."""

_TELLING: Final = 0.0225
_DOUBT: Final = 4.0
"""Of a difference (of logarithms) whose square is this plus four of its variances, half is believed. Replicas that are
equal must cost the same: a few percent of a long prompt are seconds, and all new conversations would go where the noise
is least."""

LEAST_SHARE: Final = 0.2
"""Of the time until its first event that a request's own prefill must have been, to teach anything."""

_SHAPE_DRIFT: Final = 2e-5
_FACTOR_DRIFT: Final = 5e-4
_CLIP_UP: Final = 1.5
_CLIP_DOWN: Final = 3.0
_CENTRE_EVERY: Final = 16
_CENTRE_AFTER: Final = 8
_IDLE_ROUNDS: Final = 16
"""A replica is idle when each of its peers had this many samples since its own last one; twice that halves its f."""


def start_shape(parameters: int, layers: int, hidden: int, gpu_type: str, gpus: int = 1) -> tuple[float, float]:
    """(a, q) in seconds before anything was measured; unknown sizes (0) are taken for an 8B model's, 0 GPUs for one."""
    flops = USABLE_SHARE * _peak(gpu_type) * max(1, gpus)
    a = 2 * (parameters or DEFAULT_PARAMETERS) / flops
    q = 4 * (layers or DEFAULT_LAYERS) * (hidden or DEFAULT_HIDDEN) / flops
    return a, q


def _peak(gpu_type: str) -> float:
    name = gpu_type.lower()
    if not name or name == "cpu":
        return CPU_FLOPS
    matches = [part for part in PEAK_FLOPS if part in name]
    return PEAK_FLOPS[max(matches, key=len)] if matches else UNKNOWN_GPU_FLOPS


class Estimate:
    """The logarithm of one positive number, with its variance."""

    __slots__ = ("_drift", "_most", "_start", "_variance_most", "log", "variance")

    def __init__(self, start: float, variance: float, drift: float, range_: float) -> None:
        self.log = self._start = math.log(start)
        self.variance = self._variance_most = variance
        self._drift = drift
        self._most = math.log(range_)

    @property
    def value(self) -> float:
        return math.exp(self.log)

    def update(self, share: float, pull: float, precision: float) -> None:
        """``share``: of the predicted time that this number makes; ``pull``: surprise ÷ variance of the prediction."""
        self.move(self.variance * share * pull)
        kept = 1.0 - self.variance * share * share * precision
        self.variance = min(self.variance * kept + self._drift * share, self._variance_most)

    def move(self, by: float) -> None:
        self.log = min(max(self.log + by, self._start - self._most), self._start + self._most)

    def forget(self, kept: float) -> None:
        """Towards the start, ``kept`` of the way remains."""
        self.log = self._start + kept * (self.log - self._start)
        self.variance = self._variance_most - kept * kept * (self._variance_most - self.variance)

    def believed(self, kept: float) -> float:
        """What of its distance from the start is told from noise, when ``kept`` of it still counts."""
        distance = kept * (self.log - self._start)
        square = distance * distance
        return distance * square / (square + _TELLING + _DOUBT * self.variance)


class Shape:
    """a, q and b of one profile on one GPU type, from the samples of all its replicas."""

    def __init__(self, a: float, q: float, variance: float = NAMED_VARIANCE) -> None:
        self._a = Estimate(a, variance, _SHAPE_DRIFT, SHAPE_RANGE)
        self._q = Estimate(q, variance, _SHAPE_DRIFT, SHAPE_RANGE)
        self._b = Estimate(START_B_S, _OFFSET_VARIANCE, _SHAPE_DRIFT, MAX_B_S / START_B_S)
        self._speeds: WeakSet[Speed] = WeakSet()
        self.samples = 0

    @property
    def a(self) -> float:
        return self._a.value

    @property
    def q(self) -> float:
        return self._q.value

    @property
    def b(self) -> float:
        return self._b.value

    @property
    def replicas(self) -> int:
        """How many have taught it."""
        return len(self._speeds)

    def learn(self, speed: "Speed", uncached: int, cached: int, busy_s: float) -> None:
        """One sample of the replica that has ``speed``."""
        self._speeds.add(speed)
        self.samples += 1
        fixed_s = self.b * speed.offset.value
        linear_s = speed.f * self.a * uncached
        total_s = PrefillCost(self.a, self.q, speed.f, fixed_s).seconds(uncached, cached)
        fixed, linear = fixed_s / total_s, linear_s / total_s
        square = 1.0 - fixed - linear
        parts = (
            (self._a, linear), (self._q, square), (self._b, fixed), (speed.factor, 1.0 - fixed), (speed.offset, fixed),
        )  # fmt: skip
        variance = _NOISE + sum(share * share * part.variance for part, share in parts)
        deviation = math.sqrt(variance)
        surprise = min(max(math.log(busy_s / total_s), -_CLIP_DOWN * deviation), _CLIP_UP * deviation)
        for part, share in parts:
            part.update(share, surprise / variance, 1.0 / variance)
        if self.samples % _CENTRE_EVERY == 0:
            self._centre()

    def _centre(self) -> None:
        """Move what the factors have in common into a and q."""
        known = [speed for speed in self._speeds if speed.samples >= _CENTRE_AFTER]
        if not known:
            return
        common = sum(speed.factor.log for speed in known) / len(known)
        for part in (self._a, self._q):
            part.move(common)
        for speed in known:
            speed.factor.move(-common)


class Speed:
    """What one replica makes of its shape: ``f`` times the prefill, and a ``b`` of its own."""

    def __init__(self) -> None:
        self.samples = 0
        self._shape: Shape | None = None
        self._reset()

    @property
    def f(self) -> float:
        return self.factor.value

    def cost(self, shape: Shape) -> PrefillCost:
        """As known now; a replica that changed its shape starts anew."""
        if shape is not self._shape:
            return PrefillCost(shape.a, shape.q, 1.0, shape.b)
        kept = self._kept(shape)
        b = min(shape.b * math.exp(self.offset.believed(kept)), MAX_B_S)
        return PrefillCost(shape.a, shape.q, math.exp(self.factor.believed(kept)), b)

    def learn(self, shape: Shape, uncached: int, cached: int, busy_s: float) -> None:
        if uncached <= 0 or cached < 0 or busy_s <= 0:
            return
        if shape is not self._shape:
            self._reset()
            self._shape = shape
        elif (kept := self._kept(shape)) < 1.0:
            self.factor.forget(kept)
            self.offset.forget(kept)
        self.samples += 1
        self._heard_at = shape.samples
        shape.learn(self, uncached, cached, busy_s)

    def _reset(self) -> None:
        self.factor = Estimate(1.0, _FACTOR_VARIANCE, _FACTOR_DRIFT, MAX_F)
        self.offset = Estimate(1.0, _FACTOR_VARIANCE, _FACTOR_DRIFT, MAX_F)
        self.samples = 0
        self._heard_at = 0

    def _kept(self, shape: Shape) -> float:
        """How much of what was learned still counts."""
        idle = (shape.samples - self._heard_at) / (_IDLE_ROUNDS * max(1, shape.replicas)) - 1.0
        return 1.0 if idle <= 0.0 else 0.5**idle


def busy_share(elapsed_s: float, ahead_s: float, own_s: float) -> float:
    """Of the time until a first event, what this request's own prefill took; 0: it cannot be told.

    Between pick and first event the replica finished what was booked ahead of the request and the request itself;
    each gets its share of the elapsed time. One whose share is small tells of the others' predictions and not of its
    own: a long prefill would be counted again by every short one behind it.
    """
    total = ahead_s + own_s
    return elapsed_s * own_s / total if total > 0 and own_s >= LEAST_SHARE * total else 0.0
