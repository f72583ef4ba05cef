from roundhouse_kv.keys import CHUNK_BYTES, chain_keys, next_key, root_key


def test_only_full_chunks_have_keys() -> None:
    root = root_key("p")
    assert chain_keys(b"x" * (CHUNK_BYTES - 1), root) == []
    assert len(chain_keys(b"x" * (3 * CHUNK_BYTES + 1), root)) == 3


def test_a_key_depends_on_everything_before_it() -> None:
    same = b"s" * CHUNK_BYTES
    one = chain_keys(b"a" * CHUNK_BYTES + same, root_key("p"))
    other = chain_keys(b"b" * CHUNK_BYTES + same, root_key("p"))
    assert one[0] != other[0]
    assert one[1] != other[1]


def test_a_chain_can_be_continued_chunk_by_chunk() -> None:
    data = bytes(range(256)) * 3
    key = root_key("p", "lora", "salt")
    expected = chain_keys(data, key)
    got = []
    for start in range(0, len(data), CHUNK_BYTES):
        key = next_key(memoryview(data)[start : start + CHUNK_BYTES], key)
        got.append(key)
    assert got == expected


def test_profile_adapter_and_salt_separate_chains() -> None:
    roots = {root_key("p"), root_key("q"), root_key("p", "a"), root_key("p", "", "a"), root_key("p", "a", "a")}
    assert len(roots) == 5
