from collections.abc import Iterable, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from roundhouse_agent.blocks import BlockMap, KeyChange
from roundhouse_engines.probe import BlocksCleared, BlocksRemoved, BlocksStored, CacheBatch, CacheEvent
from roundhouse_kv.keys import chain_keys, root_key

SIZE = 128  # tokens a block; one token is one byte, so two blocks complete one key


class Bytes:
    """Token n spells byte n; 256 is unknown text; more is no token."""

    opaque = frozenset({256})

    def bytes(self, ids: Iterable[int]) -> bytes:
        wanted = list(ids)
        if any(token > 256 for token in wanted):
            raise KeyError
        return bytes(token % 256 for token in wanted)


class Refusing:
    """Refuses every block from the first that holds byte 255 on."""

    def tails(self, before: Sequence[int], tokens: Sequence[int], block_size: int) -> list[tuple[int, ...]]:
        whole = tokens.index(255) // block_size if 255 in tokens else len(tokens) // block_size
        return [()] * whole


def block_map(canonical: Refusing | None = None) -> BlockMap:
    return BlockMap(Bytes(), lambda adapter, salt: root_key("p", adapter, salt), canonical)


def stored(
    *hashes: int, parent: int | None = None, fill: int = 7, salt: str = "", again: bool = False, opaque: bool = False
) -> BlocksStored:
    tokens = tuple((fill + i) % 250 for i in range(SIZE * len(hashes)))
    return BlocksStored(hashes, parent, tokens, SIZE, salt=salt, reannounced=again, opaque=opaque)


def expected(blocks: int, fill: int = 7, salt: str = "") -> list[int]:
    return chain_keys(bytes((fill + i) % 250 for i in range(SIZE * blocks)), root_key("p", "", salt))


def apply(blocks: BlockMap, *events: CacheEvent, gap: bool = False) -> KeyChange:
    blocks.apply(CacheBatch(0, events, gap))
    return blocks.take()


def test_a_block_publishes_the_keys_whose_last_byte_lies_in_it() -> None:
    blocks = block_map()
    assert apply(blocks, stored(1)) == KeyChange((), ())
    whole = stored(1, 2, 3, 4)
    rest = BlocksStored((2, 3, 4), 1, whole.tokens[SIZE:], SIZE)
    assert apply(blocks, rest).added == tuple(expected(4))


def test_a_known_block_goes_on_as_parent_of_an_event_that_starts_with_it() -> None:
    blocks = block_map()
    apply(blocks, stored(1, 2))
    assert apply(blocks, stored(1, 2, 3, 4)).added == tuple(expected(4)[1:])


def test_salt_and_adapter_change_the_root() -> None:
    blocks = block_map()
    assert apply(blocks, stored(1, 2, salt="tenant")).added == tuple(expected(2, salt="tenant"))
    assert expected(2) != expected(2, salt="tenant")


def test_removal_of_the_only_block_removes_its_keys() -> None:
    blocks = block_map()
    apply(blocks, stored(1, 2))
    assert apply(blocks, BlocksRemoved((2,))) == KeyChange((), tuple(expected(2)))
    assert apply(blocks, BlocksRemoved((1,))) == KeyChange((), ())
    assert blocks.keys() == []


def test_a_copy_keeps_the_keys_until_it_is_removed_too() -> None:
    blocks = block_map()
    apply(blocks, stored(1, 2), stored(1, 2))
    assert apply(blocks, BlocksRemoved((2,))).empty
    assert apply(blocks, BlocksRemoved((2,))).removed == tuple(expected(2))


def test_a_reannounced_block_is_no_copy() -> None:
    blocks = block_map()
    apply(blocks, stored(1, 2), stored(1, 2, again=True))
    assert apply(blocks, BlocksRemoved((2,))).removed == tuple(expected(2))


def test_a_key_completed_by_two_blocks_stays_until_both_are_gone() -> None:
    blocks = block_map()
    apply(blocks, stored(1, 2), stored(11, 12))
    assert apply(blocks, BlocksRemoved((2,))).empty
    assert apply(blocks, BlocksRemoved((12,))).removed == tuple(expected(2))


def test_a_key_removed_and_added_again_before_it_is_taken_does_not_show() -> None:
    blocks = block_map()
    apply(blocks, stored(1, 2))
    assert apply(blocks, BlocksRemoved((2,)), BlocksStored((2,), 1, stored(1, 2).tokens[SIZE:], SIZE)).empty


def test_a_child_of_an_unknown_parent_publishes_nothing_and_is_counted() -> None:
    blocks = block_map()
    assert apply(blocks, stored(2, parent=1)).empty
    assert blocks.counts.unknown_parents == 1


def test_clear_forgets_everything_even_what_was_not_taken_yet() -> None:
    blocks = block_map()
    assert apply(blocks, stored(1, 2), BlocksCleared()) == KeyChange((), (), True)
    assert apply(blocks, stored(3, parent=2)).empty


def test_what_is_stored_after_a_clear_in_the_same_batch_is_held() -> None:
    blocks = block_map()
    apply(blocks, stored(1, 2))
    assert apply(blocks, BlocksCleared(), stored(1, 2)) == KeyChange(tuple(expected(2)), (), True)


def test_a_gap_forgets_presence_but_a_child_revives_its_parents() -> None:
    blocks = block_map()
    apply(blocks, stored(1, 2, 3, 4))
    assert apply(blocks, gap=True) == KeyChange((), (), True)
    whole = stored(1, 2, 3, 4, 5, 6)
    child = BlocksStored((5, 6), 4, whole.tokens[4 * SIZE :], SIZE)
    assert set(apply(blocks, child).added) == set(expected(6))


def test_a_block_removed_after_a_gap_is_not_revived() -> None:
    blocks = block_map()
    apply(blocks, stored(1, 2))
    apply(blocks, BlocksRemoved((2,)), gap=True)
    assert apply(blocks, stored(3, parent=2)).empty
    assert blocks.counts.unknown_parents == 1


def test_a_snapshot_replaces_what_was_held() -> None:
    blocks = block_map()
    apply(blocks, stored(1, 2), stored(11, 12, fill=9))
    change = apply(blocks, stored(1, 2, again=True), gap=True)
    assert change == KeyChange(tuple(expected(2)), (), True)
    assert blocks.keys() == expected(2)


def test_a_not_canonical_block_and_its_descendants_publish_nothing_but_are_known() -> None:
    blocks = block_map(Refusing())
    tokens = (*[1] * SIZE * 2, 255, *[1] * (SIZE - 1), *[1] * SIZE)
    assert len(apply(blocks, BlocksStored((1, 2, 3, 4), None, tokens, SIZE)).added) == 1
    assert apply(blocks, BlocksStored((5, 6), 4, (1,) * SIZE * 2, SIZE)).empty
    assert blocks.counts.not_canonical == 2
    assert blocks.counts.unknown_parents == 0
    assert apply(blocks, BlocksRemoved((6, 5, 4, 3))).empty
    assert blocks.counts.unknown_removals == 0


def test_unknown_text_ends_the_chain() -> None:
    blocks = block_map()
    tokens = (*[1] * SIZE * 2, *[256] * SIZE, *[1] * SIZE * 3)
    assert len(apply(blocks, BlocksStored((1, 2, 3, 4, 5, 6), None, tokens, SIZE)).added) == 1


def test_an_id_that_the_tokenizer_lacks_ends_the_chain() -> None:
    blocks = block_map()
    tokens = (*[1] * SIZE * 2, 9999, *[1] * (SIZE - 1), *[1] * SIZE)
    assert len(apply(blocks, BlocksStored((1, 2, 3, 4), None, tokens, SIZE)).added) == 1


def test_blocks_that_text_cannot_spell_end_the_chain() -> None:
    blocks = block_map()
    assert apply(blocks, stored(1, 2, opaque=True)).empty
    assert apply(blocks, stored(3, 4, parent=2)).empty


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("store"), st.integers(0, 5), st.integers(1, 6)),
        st.tuples(st.just("evict"), st.integers(0, 5), st.integers(1, 3)),
        st.tuples(st.just("take"), st.just(0), st.just(0)),
        st.tuples(st.just("clear"), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(EVENTS)
def test_a_reader_that_applies_the_changes_holds_what_a_plain_model_holds(steps: list[tuple[str, int, int]]) -> None:
    """Chains 0–5 share their first two blocks; the engine evicts tail first."""
    blocks, reader = block_map(), set[int]()
    lengths = [0] * 6
    for step, chain, count in steps:
        if step == "store":
            lengths[chain] = max(lengths[chain], count)
            blocks.apply(CacheBatch(0, (_chain(chain, lengths[chain]),)))
        elif step == "evict":
            gone = range(max(0, lengths[chain] - count), lengths[chain])
            lengths[chain] -= len(gone)
            blocks.apply(CacheBatch(0, (BlocksRemoved(tuple(_hash(chain, i) for i in reversed(gone))),)))
        elif step == "clear":
            lengths = [0] * 6
            blocks.apply(CacheBatch(0, (BlocksCleared(),)))
        else:
            _follow(reader, blocks.take())
    _follow(reader, blocks.take())
    model = {key for chain, count in enumerate(lengths) for key in chain_keys(_text(chain, count), root_key("p"))}
    assert reader == model == set(blocks.keys())


def _hash(chain: int, i: int) -> int:
    return chain * 100 + i


def _text(chain: int, count: int) -> bytes:
    shared, own = bytes([1]) * SIZE * 2, bytes([10 + chain]) * SIZE * 10
    return (shared + own)[: SIZE * count]


def _chain(chain: int, count: int) -> BlocksStored:
    """A full report of one chain: known blocks are no copies."""
    hashes = tuple(_hash(chain, i) for i in range(count))
    return BlocksStored(hashes, None, tuple(_text(chain, count)), SIZE, reannounced=True)


def _follow(reader: set[int], change: KeyChange) -> None:
    if change.cleared:
        reader.clear()
    assert reader.isdisjoint(change.added)
    assert reader.issuperset(change.removed)
    reader.difference_update(change.removed)
    reader.update(change.added)
