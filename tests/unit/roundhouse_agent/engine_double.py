"""An engine in memory behind the `Probe` protocol: one token is one byte, a template of one line."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from roundhouse_engines.errors import ProbeError
from roundhouse_engines.probe import BlocksStored, CacheBatch, LoadReport

BLOCK = 16
TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
_ALPHABET = [*range(33, 127), *range(161, 173), *range(174, 256)]


def _letters() -> dict[int, str]:
    letters = {byte: chr(byte) for byte in _ALPHABET}
    for byte in range(256):
        letters.setdefault(byte, chr(256 + len(letters) - len(_ALPHABET)))
    return letters


TOKENIZER = json.dumps(
    {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "post_processor": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": {letter: byte for byte, letter in _letters().items()}, "merges": []},
    }
).encode()  # fmt: skip
FILES = {
    "tokenizer.json": TOKENIZER,
    "chat_template.jinja": TEMPLATE.encode(),
    "config.json": b'{"num_hidden_layers": 2, "hidden_size": 8}',
}


def render(body: Mapping[str, Any]) -> str:
    """The engine's own rendering, which the agent's must equal."""
    if "prompt" in body:
        return str(body["prompt"])
    text = ""
    for message in body["messages"]:
        if message["role"] not in ("user", "system", "assistant"):
            raise ProbeError("refused")
        content = message["content"]
        if not isinstance(content, str):
            content = "\n".join(part["text"] for part in content or ())
        text += f"<{message['role']}>{content}\n"
    if body.get("continue_final_message"):
        return text.removesuffix("\n")
    return text + ("<assistant>" if body.get("add_generation_prompt", True) else "")


class EngineDouble:
    """``prompt`` renders; ``tokenizes`` False: no ``/tokenize``; ``tells`` False: no KV events."""

    def __init__(
        self, prompt: Callable[[Mapping[str, Any]], str] = render, *, tokenizes: bool = True, tells: bool = True
    ) -> None:
        self.prompt = prompt
        self.tokenizes = tokenizes
        self.tells = tells
        self.completed: list[Mapping[str, object]] = []
        self._batches: asyncio.Queue[CacheBatch] = asyncio.Queue()
        self._batches.put_nowait(CacheBatch(-1, ()))

    async def healthy(self) -> bool:
        return True

    async def load(self) -> LoadReport:
        return LoadReport(0, 0, 0.0, 10_000, BLOCK, len(self.completed))

    async def stack(self) -> Mapping[str, str]:
        return {"engine": "double", "version": "1"}

    async def tokenize(self, text: str) -> tuple[int, ...] | None:
        return await self.tokenize_chat({"prompt": text})

    async def tokenize_chat(self, body: Mapping[str, object]) -> tuple[int, ...] | None:
        return tuple(self.prompt(body).encode()) if self.tokenizes else None

    async def complete(self, body: Mapping[str, object]) -> Mapping[str, object]:
        self.completed.append(body)
        if self.tells:
            tokens, salt = tuple(self.prompt(body).encode()), str(body["cache_salt"])
            first = 1000 * len(self.completed)
            names = tuple(range(first, first + len(tokens) // BLOCK))
            cut = BLOCK * (len(names) - 2)
            half = BlocksStored(names[:-2], None, tokens[:cut], BLOCK, salt=salt)
            rest = BlocksStored(names[-2:], names[-3], tokens[cut : cut + 2 * BLOCK], BLOCK)
            self._batches.put_nowait(CacheBatch(0, (half,)))
            self._batches.put_nowait(CacheBatch(1, (rest,)))
        return {}

    async def events(self) -> AsyncIterator[CacheBatch]:
        while True:
            yield await self._batches.get()

    async def model_file(self, name: str) -> bytes | None:
        return FILES.get(name)

    async def close(self) -> None:
        return None
