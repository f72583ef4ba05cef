"""Sequences that wait to be started: by priority (the lowest number first), then in order of arrival."""

from collections import OrderedDict

from roundhouse_torch.scheduler.sequence import Sequence


class WaitingQueue:
    def __init__(self) -> None:
        self._levels: dict[int, OrderedDict[int, Sequence]] = {}
        self._level_of: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._level_of)

    def push(self, sequence: Sequence, *, first: bool = False) -> None:
        """``first``: before all others of its priority, as one that lost its blocks."""
        level = self._levels.setdefault(sequence.priority, OrderedDict())
        level[sequence.id] = sequence
        level.move_to_end(sequence.id, last=not first)
        self._level_of[sequence.id] = sequence.priority

    def head(self) -> Sequence:
        """Who is started next. Needs one."""
        return next(iter(self._levels[min(self._levels)].values()))

    def pop(self, id: int) -> Sequence | None:
        priority = self._level_of.pop(id, None)
        if priority is None:
            return None
        level = self._levels[priority]
        sequence = level.pop(id)
        if not level:
            del self._levels[priority]
        return sequence
