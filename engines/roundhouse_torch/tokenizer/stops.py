"""Stop strings in a stream of text."""

from collections.abc import Sequence


class StopMatcher:
    """Lets text through until a stop string is complete; a part of one at the end is held until the next text
    decides.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._stops = tuple(stops)
        self._include = include
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Text that may be shown.

        ``matched`` is set when the answer ends here; of several the leftmost, then the first listed, counts.
        """
        if not self._stops:
            return text
        text = self._held + text
        found = [(at, order) for order, stop in enumerate(self._stops) if (at := text.find(stop)) >= 0]
        if found:
            at, order = min(found)
            self._held = ""
            self.matched = self._stops[order]
            return text[: at + len(self.matched)] if self._include else text[:at]
        keep = max(overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """What was held; the answer ended without a stop string."""
        held, self._held = self._held, ""
        return held


def overlap(text: str, stop: str) -> int:
    """Length of the longest beginning of ``stop`` with which ``text`` ends."""
    lengths = range(min(len(stop) - 1, len(text)), 0, -1)
    return next((length for length in lengths if text.endswith(stop[:length])), 0)
