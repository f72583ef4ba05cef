"""The page of what is supported is what the code says."""

from pathlib import Path

from roundhouse_torch.models.registry import ARCHITECTURES
from roundhouse_torch.models.support import page

PAGE = Path(__file__).resolve().parents[3] / "docs" / "engine-support.md"


def test_the_tracked_page_is_the_generated_one() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "stale: run make engine-support"


def test_every_architecture_says_what_it_is() -> None:
    for line in page().splitlines():
        if any(line.startswith(f"| `{name}`") for name in ARCHITECTURES):
            assert len(line) > 40
