"""From an engine's tokens to a client's text, one `Choice` per answer."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from roundhouse_torch.errors import BadRequest
from roundhouse_torch.messages.command import Add
from roundhouse_torch.messages.report import Output, TokenLogprobs
from roundhouse_torch.scheduler.sequence import Finish
from roundhouse_torch.server.engine_client import EngineClient
from roundhouse_torch.server.requests import Plan
from roundhouse_torch.tokenizer.stops import StopMatcher
from roundhouse_torch.tokenizer.tokenizer import TextTokenizer


@dataclass(frozen=True, slots=True)
class Prompt:
    """``max_tokens`` is what its answers may have; ``grammar``: what they must match, for the engine; ``echo``: text
    that comes before them.
    """

    tokens: list[int]
    max_tokens: int
    grammar: str = ""
    echo: str = ""


class Alternative(NamedTuple):
    text: str
    raw: bytes
    logprob: float


class Told(NamedTuple):
    """One token of an answer, ``offset`` characters from its beginning, and the likeliest ones at its place."""

    chosen: Alternative
    top: Sequence[Alternative]
    offset: int


@dataclass(frozen=True, slots=True)
class Delta:
    """What one choice gained.

    ``finish`` comes with the last; ``stop_reason``: the stop string or stop token id that ended it.
    """

    index: int
    text: str
    tokens: Sequence[int]
    finish: Finish | None = None
    stop_reason: str | int | None = None
    logprobs: Sequence[Told] = ()


def joined(deltas: Sequence[Delta]) -> Delta:
    """All of one choice's in one."""
    last, text = deltas[-1], "".join(delta.text for delta in deltas)
    tokens = [token for delta in deltas for token in delta.tokens]
    logprobs = [told for delta in deltas for told in delta.logprobs]
    return Delta(last.index, text, tokens, last.finish, last.stop_reason, logprobs)


@dataclass(frozen=True, slots=True)
class UsageCount:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class Choice:
    """State of one answer."""

    def __init__(self, index: int, prompt: Prompt, plan: Plan, tokenizer: TextTokenizer) -> None:
        self.index = index
        self.generated = 0
        self.cached = 0
        self._plan = plan
        self._tokenizer = tokenizer
        self._offset = 0
        self._echo = prompt.echo
        self._detokenizer = tokenizer.detokenizer(prompt.tokens, skip_special_tokens=plan.skip_special_tokens)
        self._stops = StopMatcher(plan.stops, include=plan.asked.include_stop_str_in_output)

    def feed(self, output: Output) -> Delta:
        """Tokens behind a stop string are dropped; so is the text of the token that ended the answer."""
        sampling, stops = self._plan.sampling, self._stops
        hides_end = output.finish == Finish.STOP and not self._plan.asked.include_stop_str_in_output
        self.cached += output.cached
        text, self._echo = self._echo, ""
        before = self.generated
        for token in output.tokens:
            self.generated += 1
            if hides_end and token in sampling.ends:
                break
            piece = self._detokenizer.push(token)
            text += stops.push(piece) if self.generated >= sampling.min_tokens else piece
            if stops.matched is not None:
                break
        if output.finish is not None and stops.matched is None:
            text += stops.push(self._detokenizer.flush())
        finish = Finish(output.finish) if output.finish is not None else None
        reason: str | int | None = output.stop_token
        if stops.matched is not None:
            finish, reason = Finish.STOP, stops.matched
        elif finish is not None:
            text += stops.flush()
        tokens = output.tokens[: self.generated - before]
        return Delta(self.index, text, tokens, finish, reason, self._told(tokens, output.logprobs or ()))

    def _told(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> list[Told]:
        found = []
        for token, one in zip(tokens, logprobs, strict=False):
            top = [Alternative(*self._tokenizer.spelling(id), value) for id, value in one.top]
            found.append(Told(Alternative(*self._tokenizer.spelling(token), one.chosen), top, self._offset))
            self._offset += len(found[-1].chosen.text)
        return found


class Generation:
    """All answers of one request: choice ``prompt · n + k`` is the k-th answer to that prompt."""

    def __init__(
        self, client: EngineClient, tokenizer: TextTokenizer, prompts: Sequence[Prompt], plan: Plan, arrived: float
    ) -> None:
        self._client = client
        self._arrived = arrived
        self.plan = plan
        self.prompts = prompts
        owners = [prompt for prompt in prompts for _ in range(plan.asked.n)]
        self.choices = [Choice(index, prompt, plan, tokenizer) for index, prompt in enumerate(owners)]

    async def deltas(self) -> AsyncGenerator[Delta, None]:
        """Until every choice is finished. Closing the iterator early aborts the rest.

        Raises `Busy` and `BadRequest` at first, `EngineDied` at any time.
        """
        plan, ids = self.plan, self._client.new_ids(len(self.choices))
        adds = [self._add(id, choice.index) for id, choice in zip(ids, self.choices, strict=True)]
        choices = dict(zip(ids, self.choices, strict=True))
        async with self._client.answers(adds, arrived=self._arrived, params_n=plan.asked.n) as mailbox:
            while choices:
                output = await mailbox.take()
                choice = choices.get(output.id)
                if choice is None:
                    continue
                if output.error is not None:
                    raise BadRequest(output.error, plan.structure.field if plan.structure else None)
                delta = choice.feed(output)
                if delta.finish is not None:
                    del choices[output.id]
                    self._client.end(output.id, delta.finish)
                yield delta

    def prompt_of(self, choice: int) -> Prompt:
        return self.prompts[choice // self.plan.asked.n]

    @property
    def usage(self) -> UsageCount:
        """A prompt counts once, however many answers it gets."""
        return UsageCount(
            prompt_tokens=sum(len(prompt.tokens) for prompt in self.prompts),
            completion_tokens=sum(choice.generated for choice in self.choices),
            cached_tokens=sum(choice.cached for choice in self.choices[:: self.plan.asked.n]),
        )

    def _add(self, id: int, index: int) -> Add:
        """Each answer to a prompt has its own seed, so that they differ."""
        plan, prompt = self.plan, self.prompt_of(index)
        sampling = msgspec.structs.replace(plan.sampling, seed=plan.sampling.seed + index % plan.asked.n)
        length, salt = len(prompt.tokens) + prompt.max_tokens, plan.asked.cache_salt
        return Add(
            id, prompt.tokens, length, sampling, salt, plan.adapter, prompt.grammar, priority=plan.asked.priority
        )
