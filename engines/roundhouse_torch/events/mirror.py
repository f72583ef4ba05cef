"""What the published events add up to: the answer to "what does the cache hold now?"."""

from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple

from roundhouse_torch.kvcache.events import AllBlocksCleared, BlockRemoved, BlockStored, CacheEvent
from roundhouse_torch.kvcache.host import MEDIUM as HOST
from roundhouse_torch.kvcache.host import stored_on_host

MAX_RUN = 512
"""Blocks in one event of a snapshot."""


class HeldBlock(NamedTuple):
    parent: int | None
    tokens: "array[int]"
    extra_keys: list[str] | None
    adapter: str | None


class CacheMirror:
    """Blocks by hash, every parent before its children: the engine stores a parent first and evicts it last."""

    def __init__(self) -> None:
        self.blocks: dict[int, HeldBlock] = {}
        self.on_host: dict[int, None] = {}

    def apply(self, event: CacheEvent) -> None:
        match event:
            case BlockStored(medium=medium) if medium == HOST:
                self.on_host.update(dict.fromkeys(event.block_hashes))
            case BlockStored():
                self._store(event)
            case BlockRemoved():
                held: dict[int, Any] = self.on_host if event.medium == HOST else self.blocks
                for block in event.block_hashes:
                    held.pop(block, None)
            case AllBlocksCleared():
                self.blocks.clear()
                self.on_host.clear()

    def events(self) -> Iterator[BlockStored]:
        """The whole content as events, chains of blocks in one piece where they were stored one after the other."""
        run: list[tuple[int, HeldBlock]] = []
        for hash, block in self.blocks.items():
            if run and (block.parent != run[-1][0] or block.adapter != run[0][1].adapter or len(run) == MAX_RUN):
                yield _stored(run)
                run = []
            run.append((hash, block))
        if run:
            yield _stored(run)
        if self.on_host:
            yield stored_on_host(list(self.on_host))

    def _store(self, event: BlockStored) -> None:
        parent, size = event.parent_block_hash, event.block_size
        for index, (hash, extra) in enumerate(zip(event.block_hashes, event.extra_keys, strict=True)):
            tokens = array("I", event.token_ids[index * size : (index + 1) * size])
            self.blocks[hash] = HeldBlock(parent, tokens, extra, event.lora_name)
            parent = hash


def _stored(run: list[tuple[int, HeldBlock]]) -> BlockStored:
    first = run[0][1]
    return BlockStored(
        block_hashes=[hash for hash, _ in run],
        parent_block_hash=first.parent,
        token_ids=[token for _, block in run for token in block.tokens],
        block_size=len(first.tokens),
        lora_name=first.adapter,
        extra_keys=[block.extra_keys for _, block in run],
    )
