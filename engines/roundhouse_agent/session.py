"""One epoch of the engine, from its first answer on: what it runs, its profile, its self-test, its keys.

The self-test's verdict is kept in ``$RUN_DIR`` for the pod's life: a pod always runs the same model on the same engine,
so neither a restart of the agent nor one of the engine asks again.
"""

import asyncio
import json
import logging
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
from tokenizers import Tokenizer

from roundhouse_agent.blocks import BlockMap
from roundhouse_agent.canonical import CanonicalCheck
from roundhouse_agent.key_feed import KeyFeed
from roundhouse_agent.profile import FILES, Model, count_parameters, describe, read_files
from roundhouse_agent.self_test import Verdict, self_test
from roundhouse_engines.errors import ProbeError
from roundhouse_engines.probe import Probe
from roundhouse_kv.errors import RenderError
from roundhouse_kv.keys import root_key
from roundhouse_kv.records import Profile
from roundhouse_kv.render import Renderer

log = logging.getLogger(__name__)

VERDICT_FILE: Final = "agent-self-test.json"
SELF_TEST_S: Final = 30.0
PROBE_CHATS: Final = 2


@dataclass(frozen=True, slots=True)
class Prepared:
    """What an epoch has been found to be. ``renderer`` None: prompts cannot be rendered, nothing can be checked."""

    profile: Profile
    stack: dict[str, str]
    model: Model
    renderer: Renderer | None


class EngineSession:
    """``model_folder`` None: the engine brings its own model."""

    def __init__(self, probe: Probe, model_folder: Path | None, run_dir: Path, dirty: Callable[[], None]) -> None:
        self._probe = probe
        self._folder = model_folder
        self._run_dir = run_dir
        self._read: asyncio.Task[None] | None = None
        self.feed = KeyFeed(dirty)
        self.prepared: Prepared | None = None

    async def prepare(self) -> Prepared:
        """Raises `ProbeError` when the engine does not say what it runs."""
        if self._read is None:
            self._read = asyncio.create_task(self.feed.run(self._probe), name="kv events")
        stack = dict(await self._probe.stack())
        model = describe(await self._files(), self._parameters(), stack)
        renderer = Renderer(model.profile) if model.table is not None else None
        verdict = await self._verdict(model, renderer, stack)
        profile = msgspec.structs.replace(
            model.profile, exact=verdict.exact, reason=verdict.reason, continuation=verdict.continuation
        )
        self._use(profile, model)
        self.prepared = Prepared(profile, stack, model, renderer)
        log.info("engine_prepared exact=%s profile=%s reason=%s", profile.exact, profile.digest, profile.reason)
        return self.prepared

    async def compare(self, rendered: str, body: dict[str, Any]) -> str:
        """Why the engine's tokens of ``body`` spell something else than ``rendered``, "" when they do not.

        Raises `ProbeError` when the engine refuses the request or has no ``/tokenize``.
        """
        if self.prepared is None or self.prepared.renderer is None or self.prepared.model.table is None:
            return "prompts of this model cannot be rendered"
        known = ("messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template_kwargs", "prompt")
        asked = {name: body[name] for name in known if name in body}
        ids = await self._probe.tokenize_chat(asked)
        if ids is None:
            raise ProbeError("the engine has no /tokenize")
        renderer, spelled = self.prepared.renderer, self.prepared.model.table.bytes(ids)
        text = renderer.completion(rendered) if "messages" not in body else None
        ours = renderer.encode(text) if text is not None else renderer.encode_text(rendered)
        return "" if spelled == ours else "the engine's tokens spell another prompt"

    async def close(self) -> None:
        if self._read is not None:
            self._read.cancel()
            await asyncio.gather(self._read, return_exceptions=True)
        await self._probe.close()
