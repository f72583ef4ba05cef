"""Answers that must match a JSON schema, regex or grammar, by llguidance (MIT): a mask over the vocabulary for each
position, found while parsing.

Compiling takes milliseconds to a second and is done by threads; such requests wait outside the queue meanwhile. A
guess that does not match is never made (`Constraint`), and masks behind guesses are found by walking ahead and back.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Many
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from roundhouse_torch.scheduler.sequence import Constraint

if TYPE_CHECKING:
    from roundhouse_torch.engine.sampler import Row


KEPT = 64
"""Compiled grammars kept for the next request with the same one."""


class Grammars:
    """Compiles for one model. ``eos_ids`` may follow a complete match. Equal grammars are compiled once."""

    def __init__(self, tokenizer_json: Path, vocab_size: int, eos_ids: Iterable[int]) -> None:
        self._json, self._vocab_size, self._ends = tokenizer_json, vocab_size, sorted(eos_ids) or None
        self._matcher = lru_cache(KEPT)(self._build)
        self._pool = ThreadPoolExecutor(2, "grammar")

    def compile(self, grammar: str) -> "Future[Constraint]":
        """Its result may be a failure, told by ``ValueError``: resource limits are known only here."""
        return self._pool.submit(lambda: self._matcher(grammar).deep_copy())

    def _build(self, grammar: str) -> Any:
        from llguidance import LLMatcher

        matcher = LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise ValueError(f"the grammar cannot be used: {matcher.get_error()}")
        return matcher

    @cached_property
    def _tokenizer(self) -> Any:
        """Half a second for large vocabularies, at the first grammar."""
        from llguidance import LLTokenizer

        return LLTokenizer(self._json.read_text(encoding="utf-8"), n_vocab=self._vocab_size, eos_token=self._ends)


@cache
def _executor() -> Any:
    from llguidance import LLExecutor

    return LLExecutor(torch.get_num_threads())


def restrict(logits: torch.Tensor, rows: "Many[Row]", constrained: Many[int]) -> None:
    """Take from the ``constrained`` rows what does not match. Rows of one sequence follow each other."""
    vocabulary = logits.shape[-1]
    masks = torch.full((len(constrained), (vocabulary + 31) // 32), -1, dtype=torch.int32)
    jobs: list[tuple[Any, int, list[int]]] = []  # matcher, row of its first mask, guesses behind which it has others
    for at, index in enumerate(constrained):
        sequence, ahead = rows[index]
        if ahead:
            jobs[-1][2][:] = ahead
        else:
            jobs.append((sequence.constraint, at, []))
    memory = (masks.data_ptr(), masks.shape[1] * 4, len(constrained))
    if guessed := [job for job in jobs if job[2]]:
        _executor().unsafe_compute_mask_ptr_with_draft_token(guessed, *memory)
    if plain := [job[:2] for job in jobs if not job[2]]:
        _executor().unsafe_compute_mask_ptr(plain, *memory)
    bits = torch.arange(32, dtype=torch.int32)
    allowed = ((masks[:, :, None] >> bits) & 1).view(len(constrained), -1)[:, :vocabulary].bool()
    where = torch.tensor(constrained, device=logits.device)
    logits[where] = logits[where].masked_fill_(~allowed.to(logits.device), -torch.inf)
