"""How long an engine step takes.

``step = fixed + prefill tokens + attention of each prefill token over its context + decode context + sequences``.
The default constants stand for a 70B model on eight A100; with them a replica prefills about 8,000 tokens a second.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds; ``attention_s`` is per prefill token and token of context before it, ``decode_context_s`` per token of
    context of the sequences that decode, ``decode_sequence_s`` per such sequence."""

    step_s: float = 0.015
    prefill_token_s: float = 1.1e-4
    attention_s: float = 2.1e-9
    decode_context_s: float = 3.3e-8
    decode_sequence_s: float = 1.0e-4

    def chunk(self, tokens: int, before: int) -> float:
        """Prefill of ``tokens`` that follow ``before`` tokens already in the cache."""
        return self.prefill_token_s * tokens + self.attention_s * tokens * (before + tokens / 2)

    def base(self, sequences: int, context_tokens: int) -> float:
        """A step without its prefill chunks: ``sequences`` decode over ``context_tokens`` in all."""
        return self.step_s + self.decode_context_s * context_tokens + self.decode_sequence_s * sequences

    def growth(self, sequences: int) -> float:
        """What each further pure decode step takes longer, because every context grew by one token."""
        return self.decode_context_s * sequences
