"""SmolLM2-135M in float32, 50 prompts × 64 tokens, greedy: as transformers, with and without hits, alone and batched.

Transformers judges each answer in one pass: given prompt and answer, every token of the answer must be the likeliest at
its place. By induction that is the same as comparing with its own greedy answer, and takes a twentieth of the time.
"""

from pathlib import Path

import pytest
import torch
from roundhouse_torch.engine.build import build
from roundhouse_torch.engine.core import EngineCore
from roundhouse_torch.messages.command import Add, Sampling
from roundhouse_torch.settings import EngineSettings
from roundhouse_torch.tokenizer.template import ChatTemplate
from roundhouse_torch.tokenizer.tokenizer import TextTokenizer
from transformers import AutoModelForCausalLM

from tests.support.smollm2 import smollm2_folder

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]
LENGTH = 64
SOME = slice(0, 50, 7)
"""Prompts that are asked alone too."""
SYSTEM = "You are a careful assistant. " * 12
QUESTIONS = (
    "What is the capital of France?", "Name three colours.", "Write a haiku about rain.", "What is 17 times 3?",
    "Explain gravity to a child.", "Translate 'good morning' into Spanish.", "Who wrote Hamlet?", "List the planets.",
    "How do bees make honey?", "Write a Python function that adds two numbers.", "Why do leaves fall?",
    "What is a prime number?", "Describe the sea in one sentence.", "How does a bicycle stay upright?",
    "Give me a recipe for pancakes.", "What year did the Berlin Wall fall?", "Is water wet?",
    "Summarise the story of Cinderella.", "Name a mammal that lays eggs.", "What is the boiling point of water?",
    "How many days are in a leap year?", "Tell me a joke.", "What is an algorithm?", "Who painted the Mona Lisa?",
    "Write a limerick.",
)  # fmt: skip
TEXTS = (
    "Once upon a time", "The quick brown fox", "def fibonacci(n):\n", "In 1969, the first", "Q: Why is it blue?\nA:",
    "The mitochondria is", "SELECT name FROM", "Roses are red,", "Chapter 1\n\n", "El perro", "Die Katze sitzt",
    "for (int i = 0;", "<html>\n<body>", "To be, or not to be,", "The stock market", "Ingredients:\n- ", "E = mc",
    "Water boils at", "My favourite book", "On the first day", "日本の首都は",
    "1, 2, 3, 4,", "Dear Sir or Madam,", "The recipe needs flour, sugar and", "import numpy as np\n",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder() -> Path:
    return smollm2_folder()


@pytest.fixture(scope="module")
def core(folder: Path) -> EngineCore:
    return build(EngineSettings(model=folder, kv_cache_bytes=1 << 29, threads=1)).core


@pytest.fixture(scope="module")
def prompts(folder: Path) -> list[list[int]]:
    """Chats with a shared system prompt, some short enough for one block, and plain texts."""
    tokenizer, template = TextTokenizer.load(folder), ChatTemplate(folder)
    chats = [
        [{"role": "system", "content": SYSTEM if index % 2 else "Be brief."}, {"role": "user", "content": question}]
        for index, question in enumerate(QUESTIONS)
    ]
    rendered = [template.render({"messages": chat}) for chat in chats]
    return [tokenizer.encode(text, add_special_tokens=False) for text in (*rendered, *TEXTS)]


@pytest.fixture(scope="module")
def answers(core: EngineCore, prompts: list[list[int]]) -> list[list[int]]:
    """All prompts at once with an empty cache: chunks, decodes and shared prefixes in one batch."""
    core.reset_cache()
    return answer(core, prompts)[0]


def answer(core: EngineCore, prompts: list[list[int]], length: int = LENGTH) -> tuple[list[list[int]], list[int]]:
    """Answers and cached tokens, all prompts at once."""
    sampling = Sampling(temperature=0)
    for id, prompt in enumerate(prompts):
        core.add(Add(id, list(prompt), len(prompt) + length, sampling))
    answers: list[list[int]] = [[] for _ in prompts]
    cached = [0] * len(prompts)
    while core.busy:
        for output in core.step().outputs:
            answers[output.id] += output.tokens
            cached[output.id] += output.cached
    return answers, cached


def test_the_answers_are_those_of_transformers(
    folder: Path, prompts: list[list[int]], answers: list[list[int]]
) -> None:
    assert len(prompts) == 50
    torch.set_num_threads(1)
    oracle = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    for prompt, found in zip(prompts, answers, strict=True):
        assert len(found) == LENGTH
        with torch.inference_mode():
            logits = oracle(torch.tensor([prompt + found[:-1]])).logits[0, len(prompt) - 1 :]
        assert logits.argmax(-1).tolist() == found


def test_alone_without_hits(core: EngineCore, prompts: list[list[int]], answers: list[list[int]]) -> None:
    for prompt, expected in zip(prompts[SOME], answers[SOME], strict=True):
        core.reset_cache()
        assert answer(core, [prompt])[0] == [expected]


def test_batched_with_hits(core: EngineCore, prompts: list[list[int]], answers: list[list[int]]) -> None:
    core.reset_cache()
    answer(core, prompts, 1)
    again, cached = answer(core, prompts)
    assert again == answers
    assert cached == [(len(prompt) - 1) // 16 * 16 for prompt in prompts]


def test_with_guesses(folder: Path, prompts: list[list[int]], answers: list[list[int]]) -> None:
    settings = EngineSettings(model=folder, kv_cache_bytes=1 << 29, threads=1, spec_method="ngram", spec_max_batch=64)
    core = build(settings).core
    drafted = accepted = 0
    found: list[list[int]] = [[] for _ in prompts[SOME]]
    for id, prompt in enumerate(prompts[SOME]):
        core.add(Add(id, list(prompt), len(prompt) + LENGTH, Sampling(temperature=0)))
    while core.busy:
        report = core.step()
        drafted, accepted = drafted + report.load.drafted, accepted + report.load.accepted
        for output in report.outputs:
            found[output.id] += output.tokens
    assert found == answers[SOME]
    assert drafted > accepted > 20


def test_alone_with_hits(core: EngineCore, prompts: list[list[int]], answers: list[list[int]]) -> None:
    """A hit changes how the prompt is computed; eight tokens tell. All 64 are compared in the batched run."""
    for prompt, expected in zip(prompts[SOME], answers[SOME], strict=True):
        answer(core, [prompt + expected[:8]], 1)
        again, cached = answer(core, [prompt], 8)
        assert again == [expected[:8]]
        assert cached == [(len(prompt) - 1) // 16 * 16]
