"""One epoch of the engine, from its first answer on: what it runs, its profile, its self-test, its keys.

The self-test's verdict is kept in ``$RUN_DIR`` for the pod's life: a pod always runs the same model on the same engine,
so neither a restart of the agent nor one of the engine asks again.
"""

import asyncio
import dataclasses
import json
import logging
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any, Final

import msgspec
from roundhouse_engines.errors import ProbeError
from roundhouse_engines.probe import Probe
from roundhouse_kv.errors import RenderError, UnsupportedTokenizer
from roundhouse_kv.keys import root_key
from roundhouse_kv.records import Profile
from roundhouse_kv.render import Rendered, Renderer
from tokenizers import Tokenizer

from roundhouse_agent.blocks import BlockMap
from roundhouse_agent.canonical import CanonicalCheck
from roundhouse_agent.key_feed import KeyFeed
from roundhouse_agent.profile import FILES, Model, describe, read_folder, read_model
from roundhouse_agent.self_test import Verdict, self_test

log = logging.getLogger(__name__)

VERDICT_FILE: Final = "agent-self-test.json"
SELF_TEST_S: Final = 30.0
PROBE_CHATS: Final = 2
_TOKENIZED: Final = (
    "messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template_kwargs", "prompt",
    "add_special_tokens",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Prepared:
    """What an epoch has been found to be. ``renderer`` None: prompts cannot be rendered, nothing can be checked.

    ``subject`` names what the self-test was about.
    """

    profile: Profile
    stack: dict[str, str]
    model: Model
    renderer: Renderer | None
    subject: str


class Comparison(Enum):
    """Outcome of a check of one prompt."""

    EQUAL = auto()
    STALE = auto()  # our rendering is right now, the gateway's was another: a date that changed, an older profile
    UNEQUAL = auto()  # our rendering is wrong


class EngineSession:
    """``model_folder`` None: the engine brings its own model. Else it is read while the engine still loads."""

    def __init__(self, probe: Probe, model_folder: Path | None, run_dir: Path, dirty: Callable[[], None]) -> None:
        self._probe = probe
        self._folder = model_folder
        self._run_dir = run_dir
        self.reading: asyncio.Task[None] | None = None
        self._model = asyncio.ensure_future(self._read_model()) if model_folder is not None else None
        self.feed = KeyFeed(dirty)
        self.prepared: Prepared | None = None

    async def prepare(self) -> Prepared:
        """Raises `ProbeError` when the engine does not say what it runs."""
        if self.reading is None:
            self.reading = asyncio.create_task(self.feed.run(self._probe), name="kv events")
        stack = dict(await self._probe.stack())
        model = await (self._read_model() if self._model is None else asyncio.shield(self._model))
        base = describe(model, stack)
        renderer = _renderer(base)
        verdict = await self._verdict(model, base, renderer, stack)
        profile = msgspec.structs.replace(
            base, exact=verdict.exact, reason=verdict.reason, continuation=verdict.continuation
        )
        await self._use(profile, model)
        self.prepared = Prepared(profile, stack, model, renderer, _subject(base, stack))
        log.info("engine_prepared", extra={"exact": profile.exact, "profile": profile.digest, "reason": profile.reason})
        return self.prepared

    async def compare(self, rendered: str, body: dict[str, Any]) -> Comparison:
        """What a gateway has rendered for ``body`` against what the engine makes of it.

        Raises `ProbeError` when the engine refuses the request or has no ``/tokenize``, `RenderError` when prompts of
        this model cannot be rendered.
        """
        prepared = self.prepared
        if prepared is None or prepared.renderer is None or prepared.model.table is None:
            raise RenderError("prompts of this model cannot be rendered")
        ids = await self._probe.tokenize_chat({name: body[name] for name in _TOKENIZED if name in body})
        if ids is None:
            raise ProbeError("the engine has no /tokenize")
        spelled, chat = prepared.model.table.bytes(ids), "messages" in body
        bos = not chat and bool(body.get("add_special_tokens", True))
        if prepared.renderer.encode(Rendered(rendered, add_special_tokens=bos)) == spelled:
            return Comparison.EQUAL
        own = prepared.renderer.render(body, "/v1/chat/completions" if chat else "/v1/completions")
        return Comparison.STALE if prepared.renderer.encode(own) == spelled else Comparison.UNEQUAL

    def distrust(self, reason: str) -> Profile | None:
        """The profile turned out to be inexact: no more keys, for this pod's life. None when that is known already."""
        if self.prepared is None or not self.prepared.profile.exact:
            return None
        profile = msgspec.structs.replace(self.prepared.profile, exact=False, reason=reason)
        self.prepared = dataclasses.replace(self.prepared, profile=profile)
        self._remember(Verdict(False, reason, profile.continuation), self.prepared.subject)
        self.feed.disarm()
        return profile

    async def close(self) -> None:
        for task in (self.reading, self._model):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        await self._probe.close()

    async def _read_model(self) -> Model:
        if self._folder is not None:
            return await asyncio.to_thread(read_folder, self._folder)
        files = {name: data for name in FILES if (data := await self._probe.model_file(name)) is not None}
        return await asyncio.to_thread(read_model, files, 0)

    async def _verdict(self, model: Model, base: Profile, renderer: Renderer | None, stack: dict[str, str]) -> Verdict:
        if model.table is None or renderer is None or base.reason:
            return Verdict(False, base.reason or "the prompts of this model cannot be rendered")
        subject = _subject(base, stack)
        if (known := self._recall(subject)) is not None:
            return known
        try:
            async with asyncio.timeout(SELF_TEST_S):
                load = await self._probe.load()
                salts = [secrets.token_hex(8) for _ in range(PROBE_CHATS)]
                verdict = await self_test(self._probe, model.table, renderer, load.block_size, self.feed.record, salts)
        except TimeoutError:
            return Verdict(False, f"the self-test did not end within {SELF_TEST_S:.0f} s")
        except ProbeError as error:
            return Verdict(False, f"the self-test failed: {error}")
        self._remember(verdict, subject)
        return verdict

    async def _use(self, profile: Profile, model: Model) -> None:
        if not profile.exact or model.table is None:
            self.feed.disarm()
            return
        digest = profile.digest
        # Tokenizers that put a space before a piece cannot be re-run on a piece from the middle; there the truth check
        # of the gateways has to do.
        rules, canonical = model.table.rules, None
        if rules.alphabet == "byteLevel" and rules.prefix_space == "never":
            tokenizer = await asyncio.to_thread(Tokenizer.from_str, model.files["tokenizer.json"].decode())
            canonical = CanonicalCheck(tokenizer, model.table)
        self.feed.arm(BlockMap(model.table, lambda adapter, salt: root_key(digest, adapter, salt), canonical))

    def _recall(self, subject: str) -> Verdict | None:
        try:
            kept = json.loads((self._run_dir / VERDICT_FILE).read_bytes())
            if kept["subject"] == subject:
                return Verdict(bool(kept["exact"]), str(kept["reason"]), bool(kept["continuation"]))
        except (OSError, ValueError, KeyError, TypeError):
            log.debug("self_test_not_kept")
        return None

    def _remember(self, verdict: Verdict, subject: str) -> None:
        path = self._run_dir / VERDICT_FILE
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps({"v": 1, "subject": subject, **dataclasses.asdict(verdict)}))
        os.replace(partial, path)


def _renderer(base: Profile) -> Renderer | None:
    try:
        return Renderer(base) if base.text is not None else None
    except (RenderError, UnsupportedTokenizer) as error:
        log.warning("template_unusable", extra={"reason": str(error)})
        return None


def _subject(base: Profile, stack: dict[str, str]) -> str:
    """What is tested: this model on this engine."""
    return f"{base.digest} {stack.get('engine')} {stack.get('version')}"
