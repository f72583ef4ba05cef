"""Policies without cache knowledge or without load, and what all policies share."""

from collections.abc import Callable

from roundhouse_sim.cache import Change

from benchmarks.routing.simulation import Flight, Replica, Simulation


class BasePolicy:
    """Knows its simulation and does nothing on events."""

    record = False
    simulation: Simulation

    def attach(self, simulation: Simulation) -> None:
        self.simulation = simulation

    def first(self, flight: Flight) -> None:
        return

    def ended(self, flight: Flight) -> None:
        return

    def changed(self, replica: Replica, changes: list[Change]) -> None:
        return

    def least(self, value: Callable[[Replica], float]) -> int:
        """The replica with the least value, ties at random."""
        values = [value(replica) for replica in self.simulation.replicas]
        best = min(values)
        ties = [index for index, each in enumerate(values) if each == best]
        return ties[0] if len(ties) == 1 else self.simulation.random.choice(ties)


class RoundRobin(BasePolicy):
    def pick(self, flight: Flight) -> int:
        return flight.number % len(self.simulation.replicas)


class RandomOfTwo(BasePolicy):
    """The one with fewer requests in flight of two drawn at random."""

    def pick(self, flight: Flight) -> int:
        one, other = self.simulation.random.sample(self.simulation.replicas, 2)
        return one.index if one.in_flight <= other.in_flight else other.index


class LeastRequests(BasePolicy):
    def pick(self, flight: Flight) -> int:
        return self.least(lambda replica: replica.in_flight)


class LongestPrefix(BasePolicy):
    """The longest cached prefix wins, whatever waits there; ties go to fewer requests in flight."""

    def pick(self, flight: Flight) -> int:
        most = self.simulation.settings.limits.sequences * len(self.simulation.flights)
        return self.least(lambda replica: replica.in_flight / most - replica.cache.match(flight.keys))
