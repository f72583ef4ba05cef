"""Tasks that end together."""

import asyncio

import pytest
from roundhouse_operator import tasks
from roundhouse_operator.tasks import run_together


async def forever(ended: list[str], name: str, deaf: int = 0) -> None:
    """Ignores its cancellation as often as told."""
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            deaf -= 1
            if deaf < 0:
                ended.append(name)
                raise


async def fail() -> None:
    raise ValueError("broken")


async def test_the_first_failure_ends_the_others_and_is_raised() -> None:
    ended: list[str] = []
    with pytest.raises(ValueError, match="broken"):
        await run_together([forever(ended, "a"), fail(), forever(ended, "b")])
    assert sorted(ended) == ["a", "b"]


async def test_a_task_that_lost_its_cancellation_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "ASK_AGAIN_S", 0.001)
    ended: list[str] = []
    together = asyncio.create_task(run_together([forever(ended, "deaf", 3), forever(ended, "good")]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    together.cancel()
    with pytest.raises(asyncio.CancelledError):
        await together
    assert sorted(ended) == ["deaf", "good"]


async def test_a_task_that_fails_while_it_ends_hides_nothing() -> None:
    async def fail_at_the_end() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            raise OSError("late")

    with pytest.raises(ValueError, match="broken"):
        await run_together([fail_at_the_end(), fail()])
