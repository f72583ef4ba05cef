"""Scripts of the exactness benchmark: every kind comes, answers become history, equal seeds say the same."""

from collections import Counter
from collections.abc import Iterator
from itertools import islice

from benchmarks.exactness.prompts import Client, Prompt

TEXT = " ".join(f"word{'abcdefghij'[n % 10]} sentence value_{n} = {n}" for n in range(3000))


def requests(seed: int) -> Iterator[Prompt]:
    for script in Client(TEXT, seed).scripts():
        prompt = next(script)
        while True:
            yield prompt
            try:
                prompt = script.send("as answered")
            except StopIteration:
                break


def first_messages(seed: int) -> set[str]:
    bodies = [prompt.body for prompt in islice(requests(seed), 200)]
    return {body["messages"][0]["content"] for body in bodies if "messages" in body}


def test_eight_hundred_requests_have_every_kind() -> None:
    kinds = Counter(prompt.kind for prompt in islice(requests(1), 800))
    assert kinds.keys() >= {
        "turn0", "turn2", "regenerate", "branch", "midword", "code", "unicode", "unicode-cut", "document", "identical",
        "tools", "tool-answer", "parts", "salted", "unsalted", "completion",
    }  # fmt: skip


def test_equal_seeds_say_the_same_and_others_share_only_the_system_prompts() -> None:
    assert list(islice(requests(1), 50)) == list(islice(requests(1), 50))
    one, other = map(first_messages, (1, 2))
    assert {text for text in one & other if text.startswith("You ")} == {t for t in one if t.startswith("You ")}


def test_answers_become_history() -> None:
    third = next(prompt for prompt in requests(1) if prompt.kind == "turn2")
    assert [m["content"] for m in third.body["messages"] if m["role"] == "assistant"] == ["as answered"] * 2
