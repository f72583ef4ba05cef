"""A quarter of an hour of the conversation trace as prompts that the simulated engines take for the trace's own blocks.

The simulator's tokenizer has one token for each byte, so a block of 512 tokens is 512 characters made from the block's
id: equal ids, equal text. Completions take the text as it is, without a template that would shift the blocks. Pure.
"""

from collections.abc import Sequence
from functools import lru_cache

from xxhash import xxh3_64_intdigest

from benchmarks.routing.traces import BLOCK_TOKENS, Request

HEX_DIGITS = 16


def cut(requests: Sequence[Request], start_s: float, seconds: float) -> list[Request]:
    """What arrives in ``seconds`` from ``start_s`` on, counted from there."""
    return [
        request._replace(at=request.at - start_s) for request in requests if start_s <= request.at < start_s + seconds
    ]


def prompt_text(request: Request, number: int) -> str:
    """``number`` makes what follows the last full block its own."""
    tail = request.prompt_tokens - BLOCK_TOKENS * len(request.blocks)
    return "".join(map(_block_text, request.blocks)) + _text(f"tail {number}", tail)


@lru_cache(maxsize=20_000)
def _block_text(block: int) -> str:
    return _text(f"block {block}", BLOCK_TOKENS)


def _text(name: str, size: int) -> str:
    count = -(-size // HEX_DIGITS)
    return "".join(f"{xxh3_64_intdigest(name.encode(), part):016x}" for part in range(count))[:size]
