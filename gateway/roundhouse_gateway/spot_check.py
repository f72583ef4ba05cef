"""One request in ten thousand is checked: does the engine see the prompt that was rendered here?

The rendered text goes to the replica's agent, which asks its engine to tokenise the request and compares. What follows
from a difference is the agent's to do (it publishes a profile that is not exact); here results are counted. A check is
nobody's request: it fails in silence and never delays one.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson
from roundhouse_kv.errors import RenderError
from roundhouse_kv.render import Renderer

from roundhouse_gateway.answer import AnswerHead
from roundhouse_gateway.replica import Replica
from roundhouse_gateway.upstream import Failure, UpstreamPool

EVERY: Final = 10_000
TIMEOUT_S: Final = 30.0


class SpotCheck:
    """One check under way. ``done`` is called once, with ``exact``, ``inexact`` or ``failed``."""

    def __init__(self, replica: Replica, clock: Callable[[], float], done: Callable[["SpotCheck", str], None]) -> None:
        member = replica.member
        self.pool = UpstreamPool(member.address, member.agent_port, connect_s=2.0, idle_s=1.0, clock=clock)
        self.replica = replica.name
        self._deadline = clock() + TIMEOUT_S
        self._done = done
        self._status = 0
        self._body = b""
        self._over = False

    def start(self, payload: bytes) -> None:
        head = b"POST /check HTTP/1.1\r\nhost: %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        self.pool.send(self, head % (self.pool.host_header, len(payload)) + payload)

    def check(self, now: float) -> None:
        if now > self._deadline:
            self._end("failed")

    def retire(self) -> None:
        self.pool.retire()

    async def close(self) -> None:
        await self.pool.close()

    def answer_head(self, head: AnswerHead) -> None:
        self._status = head.status

    def answer_chunk(self, framed: bytes, start: int) -> None:
        self._body += framed[start:-2]

    def answer_data(self, data: bytes, complete: bool) -> None:
        self._body += data
        if complete:
            self._end(self._result())

    def answer_failed(self, failure: Failure, detail: str) -> None:
        self._end("failed")

    def answer_crashed(self) -> None:
        self._end("failed")

    def _result(self) -> str:
        try:
            answer = orjson.loads(self._body) if self._status == 200 else None
        except orjson.JSONDecodeError:
            return "failed"
        exact = answer.get("exact") if isinstance(answer, dict) else None
        return "failed" if not isinstance(exact, bool) else "exact" if exact else "inexact"

    def _end(self, result: str) -> None:
        if not self._over:
            self._over = True
            self._done(self, result)


def check_payload(renderer: Renderer, fields: Mapping[str, Any], path: str) -> bytes | None:
    """What to post to the agent; None when the request cannot be rendered."""
    try:
        return orjson.dumps({"rendered": renderer.render(fields, path).text, "body": fields})
    except (RenderError, orjson.JSONEncodeError):
        return None
