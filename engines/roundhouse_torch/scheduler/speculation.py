"""Guessing tokens ahead, so that one pass of the model over k + 1 tokens may give up to k + 1 of them.

A drafter guesses; the next pass computes the guesses behind the last token; the sampler draws each position as if the
guesses before it were the answer, with the random number of that position. Guesses are kept as far as they equal what
was drawn, and the first draw that differs is the next token. So the answer is, token for token, the one without
speculation, whatever the drafter says: a drafter decides about speed only. What is computed for wrong guesses is
written over.

Guessing costs when it fails: verifying takes room in the step. Hence it pauses for an answer whose guesses fail, twice
as long each time, and for all while more answers grow than ``max_answers``: with many rows in a batch the
pass is no longer bound by reading weights, and extra tokens are not free.
"""

from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from typing import Protocol

from roundhouse_torch.scheduler.sequence import Sequence

PAUSE_TOKENS = 4
"""First pause after guesses of which less than `WORTHWHILE` were right; doubled up to 256."""
LONGEST_PAUSE = 256
WORTHWHILE = 0.34
GRAMS = (4, 3, 2)
"""Lengths of the endings that are looked up, the longest first."""


class Drafter(Protocol):
    """N-gram look-up, or a small model: sees all answers at once, so that a model can guess for them in one batch."""

    def propose(self, wanted: Many[tuple[Sequence, int]]) -> list[list[int]]:
        """At most that many tokens for each sequence, maybe none."""
        ...


@dataclass(slots=True)
class Guesses:
    """Of one answer: when to guess again, and where each ending was last seen (position behind it)."""

    pause: int = PAUSE_TOKENS
    resume_at: int = 0
    seen: dict[tuple[int, ...], int] = field(default_factory=dict)
    indexed: int = 0


class NgramDrafter:
    """What followed when the last 4, 3 or 2 tokens were seen before, in prompt or answer."""

    def propose(self, wanted: Many[tuple[Sequence, int]]) -> list[list[int]]:
        return [self._lookup(sequence.tokens, sequence.guesses, most) for sequence, most in wanted]

    @staticmethod
    def _lookup(tokens: list[int], known: Guesses, most: int) -> list[int]:
        for end in range(max(known.indexed, min(GRAMS)), len(tokens)):
            for length in GRAMS:
                known.seen[tuple(tokens[max(0, end - length) : end])] = end
        known.indexed = len(tokens)
        for length in GRAMS:
            at = known.seen.get(tuple(tokens[-length:])) if len(tokens) > length else None
            if at is not None:
                period = len(tokens) - at  # what is seen ends with the answer; then it goes round
                return [tokens[at + i % period] for i in range(most)]
        return []


class Speculation:
    """Policy around a drafter: whom to guess for, how far, and when to stop. Deterministic, without a clock."""

    def __init__(self, drafter: Drafter, *, most: int, max_answers: int) -> None:
        self._drafter = drafter
        self._most = most
        self._max_answers = max_answers

    def drafts(self, answers: Many[Sequence], budget: int) -> dict[int, list[int]]:
        """Guesses by sequence id, ``budget`` tokens in all."""
        if len(answers) > self._max_answers:
            return {}
        wanted = []
        for sequence in answers:
            if sequence.guesses is None:
                sequence.guesses = Guesses()
            room = min(self._most, budget, sequence.max_length - len(sequence.tokens) - 1)
            if room > 0 and len(sequence.tokens) >= sequence.guesses.resume_at:
                wanted.append((sequence, room))
                budget -= room
        found = {}
        for (sequence, _), draft in zip(wanted, self._drafter.propose(wanted), strict=True):
            if draft and sequence.constraint is not None:
                draft = draft[: sequence.constraint.validate_tokens(draft)]
            if draft:
                found[sequence.id] = draft
        return found

    def observe(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        """What came of a draft."""
        known = sequence.guesses
        if accepted >= WORTHWHILE * drafted:
            known.pause = PAUSE_TOKENS
        else:
            known.resume_at = len(sequence.tokens) + known.pause
            known.pause = min(2 * known.pause, LONGEST_PAUSE)
