"""Text that the simulator makes up: the next token is a pure function of all tokens before it.

The context is hashed in pieces of 64 tokens, chained; a token is picked by the digest of its piece so far. So equal
prompts get equal answers, different prompts different ones, and a request that continues a half-finished answer
(prompt + what was sent) gets exactly the rest. ``seed`` and the choice's index vary the answer.
"""

from typing import Final

from xxhash import xxh3_64_intdigest

from roundhouse_sim.tokens import block_keys

ALPHABET: Final = b"etaoinshrdlucmfwypvbgkjqxz      "
PIECE: Final = 64


class AnswerWriter:
    """Writes on from ``prompt``. ``end_mean``: an answer that may end by itself does so with probability
    1/``end_mean`` at each token; 0 = never."""

    def __init__(self, prompt: str, seed: int, end_mean: int) -> None:
        root = xxh3_64_intdigest(seed.to_bytes(16, "little", signed=True))
        full = len(prompt) // PIECE * PIECE
        self._key = (block_keys(prompt[:full], PIECE, root) or [root])[-1]
        self._piece = bytearray(prompt[full:].encode("utf-16-le"))
        self._end_mean = end_mean

    def next(self) -> str | None:
        """The next token's character, None when the answer ends here."""
        digest = xxh3_64_intdigest(self._piece, self._key)
        if self._end_mean and (digest >> 32) % self._end_mean == 0:
            return None
        code = ALPHABET[digest & 31]
        self._piece.append(code)
        self._piece.append(0)
        if len(self._piece) == 2 * PIECE:
            self._key = xxh3_64_intdigest(self._piece, self._key)
            self._piece.clear()
        return chr(code)

    def write(self, count: int) -> str:
        """Up to ``count`` characters; fewer only where the answer ends."""
        chars: list[str] = []
        while len(chars) < count and (char := self.next()) is not None:
            chars.append(char)
        return "".join(chars)
