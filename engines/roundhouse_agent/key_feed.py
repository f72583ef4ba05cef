"""KV events of one epoch → `BlockMap`, once the profile that the keys' root needs is known.

Until then events wait, and the self-test looks at them through recorders. Inexact profiles have no keys: nothing is
kept for them.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import zmq
from roundhouse_engines.errors import ProbeError
from roundhouse_engines.probe import CacheBatch, Probe

from roundhouse_agent.blocks import BlockMap
from roundhouse_agent.self_test import ChainRecorder

log = logging.getLogger(__name__)

MAX_WAITING: Final = 20_000  # batches; more than that before the profile is known are told as a gap
RESTART_S: Final = 1.0
LOST: Final = CacheBatch(-1, (), gap=True)


class KeyFeed:
    """``dirty`` is called whenever keys may have changed. ``caught_up``: what happened before is in ``blocks``.

    ``batches`` and ``skipped`` count what was seen and, of its events, what was left out.
    """

    def __init__(self, dirty: Callable[[], None]) -> None:
        self._dirty = dirty
        self._waiting: list[CacheBatch] = []
        self._recorders: list[ChainRecorder] = []
        self._told = False
        self._off = False
        self.blocks: BlockMap | None = None
        self.batches = 0
        self.skipped = 0

    @property
    def caught_up(self) -> bool:
        """What the engine holds is known: its past has been read, or nobody needs it."""
        return self._off or (self._told and self.blocks is not None)

    async def run(self, probe: Probe) -> None:
        """Read events until cancelled. A stream that breaks is begun anew, as after a loss."""
        while True:
            try:
                async for batch in probe.events():
                    self._see(batch)
                    await asyncio.sleep(0)
            except (ProbeError, zmq.ZMQError, OSError) as error:
                log.warning("kv_events_broken", extra={"reason": str(error)})
            await asyncio.sleep(RESTART_S)
            self._take(LOST)

    def record(self, recorder: ChainRecorder) -> None:
        self._recorders.append(recorder)

    def arm(self, blocks: BlockMap) -> None:
        """Apply what has waited, and everything from now on."""
        self._recorders.clear()
        waiting, self._waiting = self._waiting, []
        self.blocks = blocks
        for batch in waiting:
            blocks.apply(batch)
        self._dirty()

    def disarm(self) -> None:
        """No keys in this epoch."""
        self.blocks, self._off = None, True
        self._recorders.clear()
        self._waiting.clear()
        self._dirty()

    def _see(self, batch: CacheBatch) -> None:
        for recorder in self._recorders:
            recorder.see(batch)
        self.skipped += batch.skipped
        if not batch.events and not batch.gap and not batch.skipped:
            self._told = True
            self._dirty()
            return
        self.batches += 1
        self._take(batch)

    def _take(self, batch: CacheBatch) -> None:
        if self.blocks is not None:
            self.blocks.apply(batch)
            self._dirty()
        elif not self._off:
            if len(self._waiting) >= MAX_WAITING:
                self._waiting = [LOST]
            self._waiting.append(batch)
