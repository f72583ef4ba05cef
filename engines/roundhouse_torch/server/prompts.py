"""From a request to the tokens that the model gets."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from roundhouse_torch.errors import require
from roundhouse_torch.tokenizer.template import ChatTemplate
from roundhouse_torch.tokenizer.tokenizer import TextTokenizer

LONG_TEXT = 4096
"""Longer texts are tokenised in a thread: 32 KB take some 10 ms."""


class Prompts:
    """Raises `BrokenModel` when tokenizer or template of ``folder`` are unusable."""

    def __init__(self, folder: Path, vocab_size: int) -> None:
        self.tokenizer = TextTokenizer.load(folder)
        self.template = ChatTemplate(folder)
        self._vocab_size = vocab_size

    async def chat(self, body: Mapping[str, Any], *, add_special_tokens: bool) -> tuple[str, list[int]]:
        """Its text too. The template writes special tokens itself, so the tokenizer adds none unless asked to."""
        text = self.template.render(body)
        return text, await self.tokens(text, add_special_tokens=add_special_tokens)

    async def tokens(self, given: str | list[int], *, add_special_tokens: bool) -> list[int]:
        """Of a text, or ids that the client sent. Raises `BadRequest`."""
        if isinstance(given, str):
            if len(given) < LONG_TEXT:
                return self.tokenizer.encode(given, add_special_tokens=add_special_tokens)
            return await asyncio.to_thread(self.tokenizer.encode, given, add_special_tokens=add_special_tokens)
        known = all(0 <= id < self._vocab_size for id in given)
        require(known, f"token ids must be in [0, {self._vocab_size})", "prompt")
        return given
