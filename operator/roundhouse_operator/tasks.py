"""Tasks that live and end together, however deaf one of them is to its cancellation.

Libraries now and then lose a cancellation that arrives in the same moment as an answer or a timeout. A task group asks
once and would wait for such a task forever; here it is asked again until it has ended.
"""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any

log = logging.getLogger(__name__)

ASK_AGAIN_S = 3.0


async def run_together(coroutines: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run all; when the first ends or this is cancelled, end the others. Raises what the first one raised."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            task.result()
    finally:
        await end_all(tasks)


async def end_all(tasks: Sequence["asyncio.Task[None]"]) -> None:
    """Cancel until every task has ended."""
    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=ASK_AGAIN_S)
        if pending:
            log.info("tasks_asked_again", extra={"count": len(pending)})
    for task in tasks:
        if not task.cancelled() and task.exception() is not None:
            log.debug("task_ended_badly", extra={"error": str(task.exception())})
