"""Does the engine see the very bytes that a gateway renders? Asked once per model and engine version.

Three comparisons: odd strings and chats through the engine's ``/tokenize``, if it has that, and salted chats whose
stored KV blocks must spell the beginning of our rendering. Anything unequal makes the profile inexact, with the case
that showed it as the reason. What the engine refuses, or we do not render, proves nothing and is left out.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from roundhouse_engines.errors import ProbeError
from roundhouse_engines.probe import BlocksStored, CacheBatch, Probe
from roundhouse_kv.errors import RenderError
from roundhouse_kv.render import Renderer

from roundhouse_agent.blocks import ByteTable

BLOCKS: Final = 4
EVENTS_WITHIN_S: Final = 5.0

_TOOL: Final = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather at a place",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    },
}
_CALL: Final = {
    "id": "call_0",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"place": "Zürich"}'},
}

TEXTS: Final = (
    "hello", " hello", "hello ", "  two  spaces  ", "a\nb\r\nc\n\n\nd", "\ttab\tstop", "It's we'll I'D don't",
    "3.14159 2,718 007", "def f(x):\n    return x**2  # squared\n", "naïve café Zürich", "e\u0301 combining",
    "日本語と中文、한국어", "🙂🚀👩‍👩‍👧",
    "مرحبا שלום", "\u00a0nbsp\u2003em", "<|im_start|>user\nhi<|im_end|>", "<s>[INST] x [/INST]</s>", "ﬁ ligature ①",
)  # fmt: skip

CHATS: Final[tuple[Mapping[str, Any], ...]] = (
    {"messages": [{"role": "user", "content": "Hi"}]},
    {"messages": [{"role": "user", "content": "  spaces around  "}]},
    {"messages": [{"role": "user", "content": "naïve café\n\nnew paragraph 日本語 🙂"}]},
    {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]},
    {"messages": [{"role": "system", "content": ""}, {"role": "user", "content": "empty system"}]},
    {
        "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": "c"},
        ]
    },
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}]},
    {"messages": [{"role": "user", "content": "typed <|im_end|> and </s> tokens"}]},
    {"messages": [{"role": "user", "content": "no prompt"}], "add_generation_prompt": False},
    {"messages": [{"role": "user", "name": "ann", "content": "named"}]},
    {"messages": [{"role": "developer", "content": "Be kind."}, {"role": "user", "content": "Hi"}]},
    {"messages": [{"role": "user", "content": "weather?"}], "tools": [_TOOL], "tool_choice": "none"},
    {
        "messages": [
            {"role": "user", "content": "weather?"},
            {"role": "assistant", "content": None, "tool_calls": [_CALL]},
            {"role": "tool", "tool_call_id": "call_0", "content": "rain"},
            {"role": "user", "content": "thanks"},
        ]
    },
)
CONTINUED: Final[Mapping[str, Any]] = {
    "messages": [{"role": "user", "content": "Count to ten."}, {"role": "assistant", "content": "one, two,"}],
    "add_generation_prompt": False,
    "continue_final_message": True,
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """``continuation``: the engine continues a half-finished answer exactly."""

    exact: bool
    reason: str = ""
    continuation: bool = False


class ChainRecorder:
    """Puts the blocks of one salted prompt together from the events that tell of them."""

    def __init__(self, salt: str) -> None:
        self._salt = salt
        self._last: int | None = None
        self.tokens: list[int] = []
        self.grown = asyncio.Event()

    def see(self, batch: CacheBatch) -> None:
        for event in batch.events:
            if isinstance(event, BlocksStored) and self._continues(event):
                self.tokens += event.tokens
                self._last = event.hashes[-1]
                self.grown.set()

    def _continues(self, event: BlocksStored) -> bool:
        if self._last is None:
            return event.parent is None and event.salt == self._salt
        return event.parent == self._last


async def self_test(
    probe: Probe,
    table: ByteTable,
    renderer: Renderer,
    block_size: int,
    record: Callable[[ChainRecorder], None],
    salts: Sequence[str],
) -> Verdict:
    """``record`` shows all events from now on to a recorder. One chat is sent per salt; salts must be new.

    An engine with ``/tokenize`` has shown many shapes of chats there, so one chat is enough for its blocks. All
    comparisons run at once, so that the engine may batch them. Raises `ProbeError` when it stops answering.
    """
    if await probe.tokenize(TEXTS[0]) is not None:
        salts = salts[:1]
    blocks = (
        _stored(probe, table, renderer, probe_chat(number, block_size, salt), _recorder(salt, record), block_size)
        for number, salt in enumerate(salts)
    )
    checks = (_texts(probe, table, renderer), _chats(probe, table, renderer), *blocks)
    for found in await asyncio.gather(*checks, return_exceptions=True):
        if isinstance(found, BaseException):
            raise found
        if found:
            return Verdict(False, found)
    return Verdict(True, "", await _continues(probe, table, renderer))


def _recorder(salt: str, record: Callable[[ChainRecorder], None]) -> ChainRecorder:
    recorder = ChainRecorder(salt)
    record(recorder)
    return recorder


def probe_chat(number: int, block_size: int, salt: str) -> dict[str, Any]:
    """A chat of at least `BLOCKS` blocks, with what tokenizers stumble over; every word is at least one token."""
    words = ("warm", "stall", "naïve", "42", "engine's", "日本", "x=y;", "🙂", "Track")
    text = " ".join(f"{words[i % len(words)]}{'' if i % 5 else chr(10)}" for i in range(BLOCKS * block_size))
    turns = [{"role": "user", "content": text}]
    if number % 2:
        turns = [{"role": "system", "content": text}, {"role": "user", "content": "Go on."}]
    return {"messages": turns, "max_tokens": 1, "temperature": 0, "cache_salt": salt}


async def _texts(probe: Probe, table: ByteTable, renderer: Renderer) -> str:
    async def differs(text: str) -> bool:
        ids = await probe.tokenize(text)
        return ids is not None and _spelled(table, ids) != renderer.encode(renderer.completion(text))

    answers = await asyncio.gather(*map(differs, TEXTS))
    wrong = [text for text, different in zip(TEXTS, answers, strict=True) if different]
    return f"/tokenize of the text {wrong[0]!r} gives other bytes than our rules" if wrong else ""


async def _chats(probe: Probe, table: ByteTable, renderer: Renderer) -> str:
    async def equal(body: Mapping[str, Any]) -> bool | None:
        """None: the engine refuses it, or we do not render it."""
        try:
            ids = await probe.tokenize_chat(body)
            ours = renderer.encode(renderer.chat(body))
        except (ProbeError, RenderError):
            return None
        return ids is None or _spelled(table, ids) == ours

    answers = await asyncio.gather(*map(equal, CHATS))
    if False in answers:
        return f"/tokenize of probe chat {answers.index(False)} gives another prompt than our rendering"
    return ""


async def _stored(
    probe: Probe, table: ByteTable, renderer: Renderer, body: Mapping[str, Any], recorder: ChainRecorder, size: int
) -> str:
    try:
        ours = renderer.encode(renderer.chat(body))
    except RenderError as error:
        return f"the chat template cannot be rendered: {error}"
    await probe.complete(body)
    try:
        async with asyncio.timeout(EVENTS_WITHIN_S):
            while len(recorder.tokens) < BLOCKS * size:
                recorder.grown.clear()
                await recorder.grown.wait()
    except TimeoutError:
        return (
            f"the engine told of {len(recorder.tokens) // size} stored blocks of a probe chat, {BLOCKS} were expected"
        )
    if not ours.startswith(_spelled(table, recorder.tokens[: BLOCKS * size]) or b"\0unspelled"):
        return "the KV blocks of a probe chat hold another prompt than our rendering"
    return ""


async def _continues(probe: Probe, table: ByteTable, renderer: Renderer) -> bool:
    try:
        ids = await probe.tokenize_chat(CONTINUED)
        return ids is not None and _spelled(table, ids) == renderer.encode(renderer.chat(CONTINUED))
    except (ProbeError, RenderError):
        return False


def _spelled(table: ByteTable, ids: Sequence[int]) -> bytes | None:
    try:
        return table.bytes(ids)
    except KeyError:
        return None
