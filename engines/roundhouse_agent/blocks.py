"""The engine's KV blocks as prefix keys: which keys are held now, and how that changed.

Per block the *chain state* at its end is kept: the key of the last full chunk, the bytes after it, the tail that is
not verified yet. A block publishes the keys whose chunk it completes. Several blocks may complete the same key, and an
engine may hold copies of one block, so both are counted; the change that is published is netted over everything since
it was last taken: the keys held now against those held then.

When events were lost for good, presence is forgotten but chain states stay: an engine's hash names content, so a state
is never wrong, and a child that is stored later proves that its parents are held.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from roundhouse_engines.probe import BlocksCleared, BlocksRemoved, BlocksStored, CacheBatch
from roundhouse_kv.keys import CHUNK_BYTES, next_key

MIN_FORGOTTEN: Final = 4096


class ByteTable(Protocol):
    """The part of `TokenBytes` that is used."""

    @property
    def opaque(self) -> frozenset[int]: ...

    def bytes(self, ids: Iterable[int]) -> bytes: ...


class Canonical(Protocol):
    """The part of `CanonicalCheck` that is used."""

    def tails(self, before: Sequence[int], tokens: Sequence[int], block_size: int) -> list[tuple[int, ...]]: ...


@dataclass(frozen=True, slots=True)
class KeyChange:
    """``cleared``: everything held before is gone; ``added`` holds what is held in spite of that."""

    added: tuple[int, ...]
    removed: tuple[int, ...]
    cleared: bool = False

    @property
    def empty(self) -> bool:
        return not (self.added or self.removed or self.cleared)


@dataclass(slots=True)
class BlockCounts:
    """What happened so far, for metrics."""

    stored: int = 0
    removed: int = 0
    gaps: int = 0
    unknown_parents: int = 0
    unknown_removals: int = 0
    not_canonical: int = 0
    opaque: int = 0


@dataclass(slots=True)
class _Block:
    """Chain state at a block's end. ``dark``: this block and all after it publish nothing."""

    parent: int | None
    key: int
    rest: bytes
    tail: tuple[int, ...]
    keys: tuple[int, ...]
    dark: bool
    copies: int = 1


class BlockMap:
    """Blocks of one epoch. ``root(adapter, salt)`` starts a chain; ``canonical`` None: every block counts."""

    def __init__(self, table: ByteTable, root: Callable[[str, str], int], canonical: Canonical | None) -> None:
        self._table = table
        self._root = root
        self._canonical = canonical
        self._blocks: dict[int, _Block] = {}
        self._forgotten: dict[int, _Block] = {}
        self._held: dict[int, int] = {}  # key → number of blocks that complete it
        self._before: dict[int, bool] = {}  # key → held when the change was last taken
        self._cleared = False
        self.counts = BlockCounts()

    @property
    def block_count(self) -> int:
        return len(self._blocks)

    def keys(self) -> list[int]:
        """All keys held now."""
        return list(self._held)

    def apply(self, batch: CacheBatch) -> None:
        if batch.gap:
            self.counts.gaps += 1
            self._forget()
        for event in batch.events:
            if isinstance(event, BlocksStored):
                self._store(event)
            elif isinstance(event, BlocksRemoved):
                self._remove(event)
            elif isinstance(event, BlocksCleared):
                self._clear()

    def take(self) -> KeyChange:
        """The net change since the last call."""
        added = tuple(key for key, before in self._before.items() if not before and key in self._held)
        removed = tuple(key for key, before in self._before.items() if before and key not in self._held)
        change = KeyChange(added, removed, self._cleared)
        self._before.clear()
        self._cleared = False
        return change

    def _store(self, event: BlocksStored) -> None:
        state = self._start(event)
        if state is None:
            self.counts.unknown_parents += 1
            return
        count = len(event.hashes)
        at = 0
        while at < count:
            if (known := self._find(event.hashes[at], again=not event.reannounced)) is not None:
                state, at = known, at + 1
                continue
            end = next((i for i in range(at + 1, count) if self._known(event.hashes[i])), count)
            state = self._extend(state, event, at, end)
            at = end

    def _start(self, event: BlocksStored) -> _Block | None:
        if event.parent is None:
            return _Block(None, self._root(event.adapter, event.salt), b"", (), (), False)
        return self._find(event.parent, again=False)

    def _known(self, block: int) -> bool:
        return block in self._blocks or block in self._forgotten

    def _find(self, name: int, *, again: bool) -> _Block | None:
        """A block that is held, or was until a gap; ``again``: one more copy of it is."""
        block = self._blocks.get(name)
        if block is not None:
            block.copies += again
            return block
        if name in self._forgotten:
            self._revive(name)
        return self._blocks.get(name)

    def _extend(self, state: _Block, event: BlocksStored, start: int, end: int) -> _Block:
        """Add the unknown blocks ``start`` to ``end`` of the event behind ``state``."""
        size = event.block_size
        tokens = event.tokens[start * size : end * size]
        tails = [] if state.dark or event.opaque else self._tails(state, tokens, size)
        parent = event.hashes[start - 1] if start else event.parent
        for i, name in enumerate(event.hashes[start:end]):
            if i < len(tails):
                state = self._next(state, parent, tokens[i * size : (i + 1) * size], tails[i])
            else:
                state = _Block(parent, 0, b"", (), (), True)
            self._blocks[name] = state
            self._hold(state.keys)
            self.counts.stored += 1
            parent = name
        if event.opaque:
            self.counts.opaque += end - start
        return state

    def _tails(self, state: _Block, tokens: Sequence[int], size: int) -> list[tuple[int, ...]]:
        """As many tails as leading blocks may be published."""
        spelled = self._spelled(tokens) // size
        self.counts.opaque += len(tokens) // size - spelled
        if self._canonical is None:
            return [()] * spelled
        tails = self._canonical.tails(state.tail, tokens[: spelled * size], size) if spelled else []
        self.counts.not_canonical += spelled - len(tails)
        return tails

    def _spelled(self, tokens: Sequence[int]) -> int:
        """How many leading tokens stand for bytes: the tokenizer knows them, and not as unknown text."""
        opaque = self._table.opaque
        if not opaque.isdisjoint(tokens):
            tokens = tokens[: next(i for i, token in enumerate(tokens) if token in opaque)]
        try:
            self._table.bytes(tokens)
        except KeyError:
            for i, token in enumerate(tokens):
                try:
                    self._table.bytes((token,))
                except KeyError:
                    return i
        return len(tokens)

    def _next(self, state: _Block, parent: int | None, tokens: Sequence[int], tail: tuple[int, ...]) -> _Block:
        data = state.rest + self._table.bytes(tokens)
        key, at, keys = state.key, 0, []
        while len(data) - at >= CHUNK_BYTES:
            key = next_key(data[at : at + CHUNK_BYTES], key)
            keys.append(key)
            at += CHUNK_BYTES
        return _Block(parent, key, data[at:], tail, tuple(keys), False)

    def _remove(self, event: BlocksRemoved) -> None:
        for name in event.hashes:
            block = self._blocks.get(name)
            if block is None:
                self.counts.unknown_removals += self._forgotten.pop(name, None) is None
                continue
            block.copies -= 1
            if not block.copies:
                del self._blocks[name]
                self._release(block.keys)
                self.counts.removed += 1

    def _clear(self) -> None:
        for names in (self._blocks, self._forgotten, self._held, self._before):
            names.clear()
        self._cleared = True

    def _forget(self) -> None:
        limit = max(MIN_FORGOTTEN, 2 * len(self._blocks))
        self._forgotten.update(self._blocks)
        while len(self._forgotten) > limit:
            del self._forgotten[next(iter(self._forgotten))]
        for names in (self._blocks, self._held, self._before):
            names.clear()
        self._cleared = True

    def _revive(self, name: int | None) -> None:
        """A forgotten block is held after all, and with it all that it continues."""
        while name is not None and (block := self._forgotten.pop(name, None)) is not None:
            block.copies = 1
            self._blocks[name] = block
            self._hold(block.keys)
            name = block.parent

    def _hold(self, keys: Iterable[int]) -> None:
        for key in keys:
            count = self._held.get(key, 0)
            if not count:
                self._before.setdefault(key, False)
            self._held[key] = count + 1

    def _release(self, keys: Iterable[int]) -> None:
        for key in keys:
            count = self._held[key] - 1
            if count:
                self._held[key] = count
            else:
                del self._held[key]
                self._before.setdefault(key, True)
