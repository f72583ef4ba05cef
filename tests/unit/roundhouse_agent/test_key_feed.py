"""The feed's own counts."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

from roundhouse_agent.key_feed import KeyFeed
from roundhouse_engines.probe import BlocksRemoved, CacheBatch


class _Probe:
    def __init__(self, batches: Sequence[CacheBatch]) -> None:
        self._batches = batches

    async def events(self) -> AsyncIterator[CacheBatch]:
        for batch in self._batches:
            yield batch
        await asyncio.Event().wait()


async def _fed(*batches: CacheBatch) -> KeyFeed:
    feed = KeyFeed(lambda: None)
    with suppress(TimeoutError):
        async with asyncio.timeout(0.2):
            await feed.run(_Probe(batches))  # type: ignore[arg-type]
    return feed


async def test_skipped_events_are_counted() -> None:
    feed = await _fed(
        CacheBatch(0, (BlocksRemoved((1,)),), skipped=2), CacheBatch(1, (), skipped=3), CacheBatch(2, (), gap=True)
    )
    assert (feed.skipped, feed.batches) == (5, 3)


async def test_a_batch_of_skipped_events_alone_does_not_end_the_past() -> None:
    feed = await _fed(CacheBatch(0, (), skipped=1))
    assert not feed._told
    assert (await _fed(CacheBatch(0, ())))._told
