"""From an engine's tokens to a client's text, one `Choice` per answer."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace

import msgspec

from roundhouse_torch.errors import BadRequest
from roundhouse_torch.messages.command import Add
from roundhouse_torch.messages.report import Output, TokenLogprobs
from roundhouse_torch.scheduler.sequence import Finish
from roundhouse_torch.server.engine_client import EngineClient
from roundhouse_torch.server.logprobs import Alternative, Told
from roundhouse_torch.server.requests import OutputRules, Plan
from roundhouse_torch.tokenizer.stops import StopMatcher
from roundhouse_torch.tokenizer.tokenizer import TextTokenizer


@dataclass(frozen=True, slots=True)
class Prompt:
    """``max_tokens`` is what its answers may have; ``grammar``: what they must match, for the engine."""

    tokens: list[int]
    max_tokens: int
    grammar: str = ""


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

    def after(self, text: str) -> "Delta":
        """The same behind other text."""
        return replace(self, text=text + self.text)


@dataclass(frozen=True, slots=True)
class UsageCount:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class Choice:
    """State of one answer."""

    def __init__(self, index: int, prompt: Prompt, rules: OutputRules, tokenizer: TextTokenizer) -> None:
        self.index = index
        self.generated = 0
        self.cached = 0
        self._rules = rules
        self._tokenizer = tokenizer
        self._offset = 0
        self._detokenizer = tokenizer.detokenizer(prompt.tokens, skip_special_tokens=rules.skip_special_tokens)
        self._stops = StopMatcher(rules.stops, include=rules.include_stop)

    def feed(self, output: Output, min_tokens: int) -> Delta:
        """Tokens behind a stop string are dropped; so is the text of the token that ended the answer."""
        self.cached += output.cached
        text = ""
        for position, token in enumerate(output.tokens):
            self.generated += 1
            if output.finish == Finish.STOP and token in self._rules.ends and not self._rules.include_stop:
                break
            piece = self._detokenizer.push(token)
            text += self._stops.push(piece) if self.generated >= min_tokens else piece
            if self._stops.matched is not None:
                return self._delta(text, output, position + 1, Finish.STOP, self._stops.matched)
        if output.finish is None:
            return self._delta(text, output, len(output.tokens))
        text += self._stops.push(self._detokenizer.flush())
        if self._stops.matched is not None:
            return self._delta(text, output, len(output.tokens), Finish.STOP, self._stops.matched)
        text += self._stops.flush()
        return self._delta(text, output, len(output.tokens), Finish(output.finish), output.stop_token)

    def _delta(
        self,
        text: str,
        output: Output,
        count: int,
        finish: Finish | None = None,
        stop_reason: str | int | None = None,
    ) -> Delta:
        tokens = output.tokens[:count]
        told = self._told(tokens, output.logprobs) if output.logprobs else ()
        return Delta(self.index, text, tokens, finish, stop_reason, told)

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
        self._plan = plan
        self._arrived = arrived
        self.prompts = prompts
        owners = [prompt for prompt in prompts for _ in range(plan.n)]
        self.choices = [Choice(index, prompt, plan.rules, tokenizer) for index, prompt in enumerate(owners)]
        self._adds = [
            self._add(id, prompt, index % plan.n)
            for index, (id, prompt) in enumerate(zip(client.new_ids(len(owners)), owners, strict=True))
        ]

    async def deltas(self) -> AsyncGenerator[Delta, None]:
        """Until every choice is finished. Closing the iterator early aborts the rest.

        Raises `Busy` and `BadRequest` at first, `EngineDied` at any time.
        """
        choices = {add.id: choice for add, choice in zip(self._adds, self.choices, strict=True)}
        async with self._client.answers(self._adds, arrived=self._arrived, params_n=self._plan.n) as mailbox:
            while choices:
                for output in await mailbox.take():
                    choice = choices.get(output.id)
                    if choice is None:
                        continue
                    if output.error is not None:
                        raise BadRequest(output.error, self._plan.structure.field if self._plan.structure else None)
                    delta = choice.feed(output, self._plan.sampling.min_tokens)
                    if delta.finish is not None:
                        del choices[output.id]
                        self._client.end(output.id, delta.finish)
                    yield delta

    @property
    def usage(self) -> UsageCount:
        """A prompt counts once, however many answers it gets."""
        n = self._plan.n
        return UsageCount(
            prompt_tokens=sum(len(prompt.tokens) for prompt in self.prompts),
            completion_tokens=sum(choice.generated for choice in self.choices),
            cached_tokens=sum(choice.cached for choice in self.choices[::n]),
        )

    def _add(self, id: int, prompt: Prompt, k: int) -> Add:
        """The k-th answer has its own seed, so that answers of one request differ."""
        sampling = msgspec.structs.replace(self._plan.sampling, seed=self._plan.sampling.seed + k)
        length = len(prompt.tokens) + prompt.max_tokens
        plan = self._plan
        return Add(id, prompt.tokens, length, sampling, plan.salt, plan.adapter, prompt.grammar, priority=plan.priority)
