"""Requests of the kinds that real clients send, many at a time, through both gateways.

Conversations of several turns over shared system prompts, some branched or asked again, with prose, code, and text
beyond ASCII; long documents; completions of plain text; salted ones. Answers become the next turn's history, as
clients do it. All text is this repository's or made up here.
"""

import itertools
import json
import queue
import random
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.exactness.judgement import Judgement, Sent, judge
from benchmarks.exactness.service import NAME, Run
from benchmarks.harness import ROOT, BenchmarkError

WORKERS = 3
CONVERSATIONS = 12
ANSWER_TOKENS = 8
TURNS = 4
TIMEOUT_S = 300.0
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
FOREIGN = (
    "路由器把每个请求发送给最快给出第一个词的副本。", "Маршрутизатор выбирает реплику по времени.", "🙂🚀 naïve façade",
    "プレフィックスの鍵は二百五十六バイトごとに作られます。", "Größe, Übermut und Straßenbahn",
)  # fmt: skip


class Conversation:
    """Grows by its answers; ``next_body`` is its next request."""

    def __init__(self, text: str, rng: random.Random) -> None:
        self._rng = rng
        self._text = text
        self.kind = rng.choice(["chat", "chat", "code", "foreign", "document", "completion", "salted"])
        self._salt = uuid.uuid4().hex if self.kind == "salted" else ""
        systems = [text[at * 5000 :][:1200] for at in range(3)]
        self._messages: list[dict[str, str]] = [{"role": "system", "content": rng.choice(systems)}]
        self._prompt = self._piece(900)
        self.turns = 0

    def next_body(self) -> tuple[str, dict[str, Any]]:
        self.turns += 1
        common = {"model": NAME, "stream": True, "max_tokens": ANSWER_TOKENS, "temperature": 0}
        if self._salt:
            common["cache_salt"] = self._salt
        if self.kind == "completion":
            return COMPLETION, {**common, "prompt": self._prompt}
        if self._messages[-1]["role"] != "user":
            self._messages.append({"role": "user", "content": self._question()})
        return CHAT, {**common, "messages": list(self._messages)}

    def heard(self, answer: str) -> None:
        """Go on from the answer, ask again, or branch off with another question."""
        if self.kind == "completion":
            self._prompt += answer + self._piece(300)
            return
        fate = self._rng.random()
        if fate < 0.1:
            return
        if fate < 0.2:
            self._messages[-1] = {"role": "user", "content": self._question()}
            return
        self._messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": self._question()}]

    def _question(self) -> str:
        if self.kind == "foreign":
            return " ".join(self._rng.choices(FOREIGN, k=8))
        return self._piece({"document": 3000, "code": 700}.get(self.kind, 250))

    def _piece(self, size: int) -> str:
        at = self._rng.randrange(len(self._text) - size)
        return self._text[at : at + size]


def send_all(run: Run, count: int) -> list[Judgement]:
    """``count`` requests by a few workers, each conversation one at a time, gateways by turn."""
    rng = random.Random(1)
    files = sorted([*ROOT.glob("docs/**/*.md"), *ROOT.glob("*/*/*.py")])
    text = "\n".join(path.read_text() for path in files)
    conversations: queue.SimpleQueue[Conversation] = queue.SimpleQueue()
    for _ in range(CONVERSATIONS):
        conversations.put(Conversation(text, random.Random(rng.random())))
    numbers = iter(range(count))
    sent: list[Sent] = []
    failures: list[Exception] = []

    def work() -> None:
        while not failures and (number := next(numbers, None)) is not None:
            conversation = conversations.get()
            try:
                answer, done = _send(run, number, conversation)
            except (OSError, urllib.error.HTTPError, ValueError, KeyError) as error:
                failures.append(error)
                return
            sent.append(done)
            conversation.heard(answer)
            fresh = conversation.turns >= TURNS
            conversations.put(Conversation(text, random.Random(number)) if fresh else conversation)

    workers = [threading.Thread(target=work) for _ in range(WORKERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if failures:
        raise BenchmarkError(f"a request failed: {failures[0]!r}")
    return [judge(run, each, sent) for each in sorted(sent, key=lambda each: each.began)]


def _send(run: Run, number: int, conversation: Conversation) -> tuple[str, Sent]:
    path, body = conversation.next_body()
    port = run.ports[number % 2]
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    began = time.monotonic()
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
        name = reply.headers["x-request-id"]
        answer = "".join(_texts(line for line in reply))
    ended = time.monotonic()
    told = _told(f"http://127.0.0.1:{port + 1}/admin/requests/{name}")
    data = run.renderer.encode(run.renderer.render(body, path))
    return answer, Sent(conversation.kind, path, body, data, began, ended, told)


def _texts(lines: Iterator[bytes]) -> Iterator[str]:
    for line in lines:
        if line.startswith(b"data: {"):
            for choice in json.loads(line[6:]).get("choices", ()):
                yield choice.get("text") or choice.get("delta", {}).get("content") or ""


def _told(url: str) -> Mapping[str, Any]:
    """The gateway writes its record a moment after the last byte."""
    for attempt in itertools.count():
        with urllib.request.urlopen(url, timeout=10) as reply:
            told: Mapping[str, Any] = json.load(reply)
        if told["actual"]["finish"] not in ("", "open") or attempt == 50:
            return told
        time.sleep(0.02)
    raise AssertionError
