"""What the operator says to the agents of replicas: drain, and go on. The client that says it."""

from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

import aiohttp
from roundhouse_engines.launch import AGENT_PORT

from roundhouse_operator.errors import AgentError


@dataclass(frozen=True, slots=True)
class DrainAnswer:
    """``state`` as in the lease; ``remaining_ms`` until the deadline that the agent keeps."""

    state: str
    remaining_ms: int = 0

    @property
    def drained(self) -> bool:
        return self.state in ("drained", "stopped")


class Agents(Protocol):
    """Both raise `AgentError` when there is no usable answer in time."""

    async def drain(self, address: str, deadline: float) -> DrainAnswer:
        """Finish requests in flight until ``deadline`` (Unix seconds). May be told again and again."""
        ...

    async def undrain(self, address: str) -> DrainAnswer:
        """Go on serving. The answer is still ``drained`` when it is too late for that."""
        ...


class HttpAgents:
    """The agents' HTTP API (docs/contracts.md §8). Async context manager."""

    def __init__(self, timeout_s: float, *, port: int = AGENT_PORT) -> None:
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._port = port
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(timeout=self._timeout)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def drain(self, address: str, deadline: float) -> DrainAnswer:
        return await self._ask("POST", address, {"deadlineMs": int(deadline * 1000)}, (200,))

    async def undrain(self, address: str) -> DrainAnswer:
        return await self._ask("DELETE", address, None, (200, 409))

    async def _ask(self, method: str, address: str, body: Any, accepted: tuple[int, ...]) -> DrainAnswer:
        assert self._session is not None
        host = f"[{address}]" if ":" in address else address
        url = f"http://{host}:{self._port}/drain"
        try:
            async with self._session.request(method, url, json=body) as response:
                if response.status not in accepted:
                    raise AgentError(f"{method} {url}: status {response.status}")
                if response.status == 409:
                    return DrainAnswer("drained")
                answer = await response.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError, ValueError, OSError) as error:
            raise AgentError(f"{method} {url}: {type(error).__name__}: {error}") from error
        if not isinstance(answer, dict) or not isinstance(answer.get("state", "ready"), str):
            raise AgentError(f"{method} {url}: unreadable answer")
        return DrainAnswer(answer.get("state", "ready"), int(answer.get("remainingMs") or 0))
