"""Where the outputs of one HTTP request's answers wait for it."""

import asyncio

from roundhouse_torch.errors import EngineError
from roundhouse_torch.messages.report import Output


class Mailbox:
    """Filled by the engine client, emptied by one handler. Bounded: an answer's outputs never exceed its max_tokens."""

    def __init__(self) -> None:
        self._outputs: list[Output] = []
        self._error: EngineError | None = None
        self._filled = asyncio.Event()

    def put(self, output: Output) -> None:
        self._outputs.append(output)
        self._filled.set()

    def fail(self, error: EngineError) -> None:
        self._error = error
        self._filled.set()

    async def take(self) -> list[Output]:
        """All outputs since the last call, at least one. Raises what `fail` was given, after the outputs before it."""
        await self._filled.wait()
        outputs, self._outputs = self._outputs, []
        if not outputs and self._error is not None:
            raise self._error
        if self._error is None:
            self._filled.clear()
        return outputs
