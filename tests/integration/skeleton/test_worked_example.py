"""The worked example of docs/routing.md, done again: what depends on no machine's speed must come out the same.

The example's two requests are sent through two fresh gateways, and `roundhouse explain` is held against the page.
"""

import json
import re
import tempfile
import urllib.request
from pathlib import Path

import pytest

from tests.integration.skeleton.local_run import SERVICE, LocalRun, local_run

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.xdist_group("skeleton"), pytest.mark.timeout(420)]

PAGE = Path(__file__).parents[3] / "docs" / "routing.md"
SYSTEM = "You are the night clerk of a railway roundhouse and answer in one short sentence. " * 44
QUESTIONS = ("Who are you?", "What do you do at night?")
MEASURED = re.compile(r"smollm2-\w{5}|\d+\.\d+(?:e-\d+)?|completionTokens: \d+")
"""Names that a run makes up, and what takes as long as it takes."""


def test_the_page_tells_what_explain_tells() -> None:
    page = re.findall(r"^    Request .*?(?=^\S)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    with tempfile.TemporaryDirectory(prefix="rh") as home, local_run(Path(home), SERVICE, ready_within_s=240.0) as run:
        told = worked_example(run)
    assert [shape(text) for text in told] == [shape(text) for text in page]


def worked_example(run: LocalRun) -> list[str]:
    """Two turns of one conversation, each through another gateway, and what is told of them."""
    messages = [{"role": "system", "content": SYSTEM}]
    told = []
    for gateway, question in enumerate(QUESTIONS):
        messages.append({"role": "user", "content": question})
        body = {"model": "smollm2", "messages": messages, "max_tokens": 12, "temperature": 0, "stream": True}
        request = urllib.request.Request(
            f"{run.url(gateway)}/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        said = ""
        with urllib.request.urlopen(request, timeout=120) as answer:
            name = answer.headers["x-request-id"]
            for line in answer:
                if line.startswith(b"data: {"):
                    said += "".join(c["delta"].get("content") or "" for c in json.loads(line[6:])["choices"])
        messages.append({"role": "assistant", "content": said})
        told.append(run.cli("explain", name))
    return told


def shape(text: str) -> list[str]:
    """Line by line, without what differs between machines; candidates in whatever order their cost put them."""
    lines = [" ".join(MEASURED.sub("*", line).split()) for line in text.strip().splitlines()]
    return sorted(line for line in lines if line and not line.startswith("Request "))
