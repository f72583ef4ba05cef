"""What clients send, of the kinds and sizes of the recorded runs that the agent's tests replay.

Conversations over shared system prompts with answers as history, asked again, branched, cut in the middle of a word;
code, text beyond ASCII and cut inside its characters, long documents, equal prompts, tools and their answers, content
parts, salts, dates, completions of text. Seven in ten requests find something of theirs cached. Pure.
"""

import random
from collections.abc import Generator, Iterator, Mapping
from typing import Any, NamedTuple

from benchmarks.exactness.service import NAME

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
FOREIGN = "今天天气很好，我们去公园散步吧。人工智能正在改变世界。東京は日本の首都です。한국어 문장도 섞어 봅시다. "
MIXED = "🙂🚀👩‍👩‍👧‍👦 naïve café résumé Ærøskøbing żółć 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 e\u0301 n\u0303 ﬁ "
PLACE = {"type": "object", "properties": {"place": {"type": "string", "description": "city"}}, "required": ["place"]}
TOOLS = [
    {
        "type": "function",
        "function": {"name": f"get_{x}", "description": f"Get the {x} of a place", "parameters": PLACE},
    }
    for x in ("weather", "time", "population")
]
CALL = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"place": "Zürich", "n": 1}'}}

Body = Mapping[str, Any]
Messages = list[dict[str, Any]]


class Prompt(NamedTuple):
    """One request of a client."""

    kind: str
    path: str
    body: Body


Answerable = Generator[Prompt, str, None]
"""Yields prompts and is sent what was answered to each."""


class Client:
    """Writes scripts: sequences of requests that build on each other. Equal seeds, equal scripts."""

    def __init__(self, text: str, seed: int) -> None:
        self._text = text
        self._words = [word for word in text.split() if word.isalpha()]
        shared = random.Random(0)
        self._systems = [
            "You are a careful assistant. " + self._prose(shared, 120),
            "You review Python code. " + self._prose(shared, 60) + "\n" + self._code(shared, 400),
            "You answer briefly. " + self._prose(shared, 90),
        ]
        self._rng = random.Random(seed)

    def scripts(self) -> Iterator[Answerable]:
        """Without end; how often each kind comes is as in the recordings."""
        kinds = [self._turns] * 6 + [self._document, self._cuts, self._equal, self._tools, self._completions]
        kinds += [self._code_review, self._code_review, self._unicode, self._unicode, self._parts, self._salted]
        while True:
            yield self._rng.choice(kinds)()

    def _turns(self) -> Answerable:
        rng = self._rng
        said: Messages = [_system(rng.choice(self._systems))]
        for turn in range(3):
            said.append(_user(self._question()))
            answer = yield self._chat(f"turn{turn}", said, rng.choice((4, 8, 16)), rng.choice((0, 0.7, 1.0)))
            said.append({"role": "assistant", "content": answer})
        yield self._chat("regenerate", said[:-1], 4, 1.0)
        yield self._chat("branch", [*said[:-2], _user("Different question: " + self._prose(rng, 12))])
        last = said[-2]["content"]
        half = len(last) // 2
        yield self._chat("midword", [*said[:-2], _user(last[:half] + "xq" + last[half:])])

    def _code_review(self) -> Answerable:
        yield self._chat("code", [_system(self._systems[1]), _user(self._code(self._rng, 900))])

    def _unicode(self) -> Answerable:
        yield self._chat("unicode", [_system(self._systems[0]), _user(self._foreign(160))])

    def _cuts(self) -> Answerable:
        text = self._foreign(160)
        for at in (60, 61, 62, 63, 120, 121):
            yield self._chat("unicode-cut", [_user(text[:at])])

    def _document(self) -> Answerable:
        document = self._code(self._rng, 4000)
        for question in ("\nSummarise.", "\nList the functions.", "\nSummarise."):
            yield self._chat("document", [_user(document + question)])
        yield self._chat("document-cut", [_user(document[:3001])])

    def _equal(self) -> Answerable:
        said = [_system(self._systems[2]), _user(self._prose(self._rng, 35))]
        for _ in range(3):
            yield self._chat("identical", said)

    def _tools(self) -> Answerable:
        said = [_system(self._systems[2]), _user(self._prose(self._rng, 10))]
        yield self._chat("tools", said, tools=TOOLS[:2], tool_choice="none")
        said = [
            _user("weather in Zürich?"),
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": '{"t": 21}'},
            _user(self._prose(self._rng, 30)),
        ]
        yield self._chat("tool-answer", said, tools=TOOLS, tool_choice="none")

    def _parts(self) -> Answerable:
        parts = [{"type": "text", "text": f"part {n} {self._prose(self._rng, 30)}"} for n in range(2)]
        for _ in range(2):
            yield self._chat("parts", [_system(self._systems[0]), {"role": "user", "content": parts}])

    def _salted(self) -> Answerable:
        tenant = f"tenant-{self._rng.randrange(3)}"
        for salted in (True, False, True):
            said = [_system(self._systems[0]), _user(self._prose(self._rng, 8))]
            yield self._chat("salted", said, cache_salt=tenant) if salted else self._chat("unsalted", said)

    def _completions(self) -> Answerable:
        text = self._prose(self._rng, 120) + self._code(self._rng, 400)
        for prompt in (text, text + " more", text[:-3] + "zz", f"<|im_start|>user\n{text}<|im_end|>"):
            yield Prompt("completion", COMPLETION, {**_common(1, 0), "prompt": prompt})

    def _chat(self, kind: str, said: Messages, tokens: int = 1, temperature: float = 0, **more: Any) -> Prompt:
        return Prompt(kind, CHAT, {**_common(tokens, temperature), "messages": list(said), **more})

    def _question(self) -> str:
        rng = self._rng
        if rng.random() < 0.7:
            return self._prose(rng, rng.randrange(5, 40))
        return f"Explain:\n```python\n{self._code(rng, 300)}\n```"

    def _prose(self, rng: random.Random, count: int) -> str:
        return " ".join(rng.choices(self._words, k=count)).capitalize() + "."

    def _code(self, rng: random.Random, size: int) -> str:
        at = rng.randrange(len(self._text) - size)
        return self._text[at : at + size]

    def _foreign(self, most: int) -> str:
        rng, begin = self._rng, self._rng.randrange(40)
        return "".join(rng.choice((FOREIGN, MIXED))[i % 40] for i in range(begin, 40 + most))


def _common(tokens: int, temperature: float) -> dict[str, Any]:
    return {"model": NAME, "stream": True, "max_tokens": tokens, "temperature": temperature}


def _system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}
