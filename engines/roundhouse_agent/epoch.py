"""Epochs: one per start of the engine process, kept across restarts of the agent.

The engine container writes a fresh nonce to ``$RUN_DIR/engine-start`` before each start. A nonce that the agent has
not seen begins a new epoch: the current time in ms, or the last epoch + 1 if the clock went back.
"""

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

NONCE_FILE: Final = "engine-start"
STATE_FILE: Final = "agent-epoch.json"


class EpochKeeper:
    """``epoch`` is 0 until the engine has started once. ``now_ms`` gives Unix milliseconds."""

    def __init__(self, run_dir: Path, now_ms: Callable[[], int]) -> None:
        self._nonce_path = run_dir / NONCE_FILE
        self._state_path = run_dir / STATE_FILE
        self._now_ms = now_ms
        self.epoch, self._nonce = self._load()

    def observe(self) -> bool:
        """Look at the nonce; True when a new epoch has begun."""
        try:
            nonce = self._nonce_path.read_text().strip()
        except OSError:
            return False
        if not nonce or nonce == self._nonce:
            return False
        self.epoch, self._nonce = max(self._now_ms(), self.epoch + 1), nonce
        self._save()
        log.info("engine_started", extra={"epoch": self.epoch})
        return True

    def _load(self) -> tuple[int, str]:
        try:
            state = json.loads(self._state_path.read_bytes())
            return int(state["epoch"]), str(state["nonce"])
        except FileNotFoundError:
            return 0, ""
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("epoch_state_unreadable", extra={"reason": str(error)})
            return 0, ""

    def _save(self) -> None:
        partial = self._state_path.with_suffix(".partial")
        partial.write_text(json.dumps({"v": 1, "epoch": self.epoch, "nonce": self._nonce}))
        os.replace(partial, self._state_path)
