import gzip
from pathlib import Path

import pytest
from roundhouse_agent.canonical import CUT, MAX_TAIL, CanonicalCheck
from roundhouse_kv.token_bytes import TokenBytes
from tokenizers import Tokenizer

DATA = Path(__file__).parents[2] / "data" / "vllm_prefix" / "tokenizer.json.gz"
TEXTS = {
    "prose": "The stall is warm, and the engine isn't cold: 42 times over.\n\n  Indented   text\tand tabs. " * 12,
    "code": "def f(x: int) -> str:\n    return f'{x!r}'  # done\n\n\n" * 20,
    "long word": "x" * 3000 + " and then words go on as they always did. " * 8,
    "chinese": "日本語" * 300 + "。" + "中文测试" * 200 + " end of it. " * 20,
    "emoji": ("word " * 50 + "🙂" * 300 + " ") * 2,
    "special": "<|im_start|>user\nhello there<|im_end|>\n" * 20,
}


class Case:
    def __init__(self) -> None:
        data = gzip.decompress(DATA.read_bytes())
        self.table = TokenBytes.load(data)
        self.tokenizer = Tokenizer.from_str(data.decode())
        self.check = CanonicalCheck(self.tokenizer, self.table)

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def accepted(self, ids: list[int], block: int, step: int) -> int:
        """Blocks accepted when they come ``step`` at a time; what does not fill a block is left out."""
        tail: tuple[int, ...] = ()
        accepted = 0
        for start in range(0, len(ids) // block * block, block * step):
            event = ids[start : min(start + block * step, len(ids) // block * block)]
            tails = self.check.tails(tail, event, block)
            accepted += len(tails)
            if len(tails) * block < len(event):
                break
            tail = tails[-1]
        return accepted


@pytest.fixture(scope="module")
def case() -> Case:
    return Case()


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize(("block", "step"), [(16, 1), (16, 7), (32, 1), (64, 3)])
def test_what_the_tokenizer_makes_is_canonical_however_it_is_cut(case: Case, name: str, block: int, step: int) -> None:
    ids = case.encode(TEXTS[name])
    assert case.accepted(ids, block, step) == len(ids) // block


def test_a_branch_from_the_middle_of_an_event_is_judged_by_its_own_tail(case: Case) -> None:
    ids = case.encode(TEXTS["prose"])
    tails = case.check.tails((), ids[:160], 16)
    for i, tail in enumerate(tails[:-2]):
        assert len(case.check.tails(tail, ids[16 * (i + 1) : 16 * (i + 3)], 16)) == 2


@pytest.mark.parametrize("step", [1, 4])
def test_one_token_per_character_is_refused_where_it_begins(case: Case, step: int) -> None:
    ids = case.encode(TEXTS["prose"])[:64]
    spelled = [token for char in "and then the prose goes on" * 8 for token in case.encode(char)]
    assert case.accepted(ids + spelled, 16, step) in (3, 4)


def test_special_tokens_spelled_as_ordinary_ones_are_refused(case: Case) -> None:
    pieces = case.encode("<") + case.encode("|im_end") + case.encode("|>")
    ids = case.encode("hello there, ") + pieces + case.encode("\nassistant says hello to all of you today, and more")
    assert case.accepted(ids, 8, 1) < len(ids) // 8


def test_a_split_word_in_a_long_text_is_found(case: Case) -> None:
    ids = case.encode(TEXTS["prose"])
    where = next(i for i in range(100, 200) if case.table.bytes([ids[i]]) == b" engine")
    split = [*ids[:where], *case.encode(" eng"), *case.encode("ine"), *ids[where + 1 :]]
    assert where // 16 <= case.accepted(split, 16, 1) <= where // 16 + 1


def test_checking_goes_on_after_a_word_too_long_to_be_kept(case: Case) -> None:
    ids = case.encode(TEXTS["long word"])
    split = [*ids, *case.encode(" eng"), *case.encode("ine"), *case.encode(" goes on and on and on and on and on")]
    assert case.accepted(split, 16, 1) < len(split) // 16


def test_the_tail_of_a_long_word_is_bounded_and_marked(case: Case) -> None:
    tails = case.check.tails((), case.encode("x" * 3000)[:320], 16)
    assert tails[-1][0] == CUT
    assert all(len(tail) <= MAX_TAIL + 1 for tail in tails)


def test_bytes_that_are_no_text_are_refused(case: Case) -> None:
    lone = [token for token in range(300) if case.table.bytes([token]) == b"\xff"]
    assert case.check.tails((), lone * 16, 16) == []
