"""What a default install consists of, as a reviewable file: UPDATE_SNAPSHOTS=1 writes it anew."""

import os
from pathlib import Path

from tests.chart.rendering import render_text

SNAPSHOT = Path(__file__).parent / "snapshots" / "default.yaml"


def test_default_render_is_the_snapshot() -> None:
    text = render_text("--set", "crds.install=false")
    if os.environ.get("UPDATE_SNAPSHOTS"):
        SNAPSHOT.write_text(text)
    assert text == SNAPSHOT.read_text()
