"""The endpoints that run or describe the model."""

import time
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from roundhouse_torch.errors import BadRequest, Busy, ModelNotFound
from roundhouse_torch.messages.report import Loaded
from roundhouse_torch.models.config import ModelConfig
from roundhouse_torch.server.answer import answer
from roundhouse_torch.server.engine_client import EngineClient
from roundhouse_torch.server.generation import Generation, Prompt
from roundhouse_torch.server.identity import REQUEST_ID
from roundhouse_torch.server.prompts import Prompts
from roundhouse_torch.server.requests import (
    DEFAULT_COMPLETION_TOKENS,
    MAX_ANSWERS,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    GenerationRequest,
    Plan,
    TokenizeRequest,
    answer_tokens,
    check,
    parse,
    parse_json,
    refuse_unsupported,
)
from roundhouse_torch.server.shapes import ChatShape, CompletionShape


class Service:
    """``accepting`` False: only what runs already is finished."""

    def __init__(
        self, client: EngineClient, prompts: Prompts, config: ModelConfig, loaded: Loaded, names: Sequence[str]
    ) -> None:
        self._client = client
        self._prompts = prompts
        self._config = config
        self._max_model_len = loaded.max_model_len
        self._names = names
        self._created = int(time.time())
        self.accepting = True

    async def chat(self, request: web.Request) -> web.StreamResponse:
        arrived = time.monotonic()
        body = await self._body(request)
        chat = parse(body, ChatRequest)
        plan = self._plan(body, chat)
        tokens = await self._prompts.chat(body, add_special_tokens=chat.add_special_tokens)
        prompt = self._prompt(tokens, chat.asked_tokens, None, plan)
        generation = Generation(self._client, self._prompts.tokenizer, [prompt], plan, arrived)
        shape = ChatShape(request[REQUEST_ID], self._shown(chat.model), show_tokens=plan.return_token_ids)
        return await answer(request, generation, shape, plan, ())

    async def completion(self, request: web.Request) -> web.StreamResponse:
        arrived = time.monotonic()
        body = await self._body(request)
        completion = parse(body, CompletionRequest)
        plan = self._plan(body, completion)
        prompts, echo = [], []
        for given in completion.prompts:
            tokens = await self._completion_tokens(given, completion.add_special_tokens)
            prompts.append(self._prompt(tokens, completion.max_tokens, DEFAULT_COMPLETION_TOKENS, plan))
            text = given if isinstance(given, str) else self._prompts.tokenizer.decode(given)
            echo += [text] * plan.n if completion.echo else []
        if len(prompts) * plan.n > MAX_ANSWERS:
            raise BadRequest(f"prompts × n must be at most {MAX_ANSWERS}", "prompt")
        generation = Generation(self._client, self._prompts.tokenizer, prompts, plan, arrived)
        shape = CompletionShape(request[REQUEST_ID], self._shown(completion.model), show_tokens=plan.return_token_ids)
        return await answer(request, generation, shape, plan, echo)

    async def tokenize(self, request: web.Request) -> web.Response:
        body = parse_json(await request.read())
        asked = parse(body, TokenizeRequest)
        self._shown(asked.model)
        if asked.messages is not None:
            tokens = await self._prompts.chat(body, add_special_tokens=bool(asked.add_special_tokens))
        elif asked.prompt is not None:
            tokens = await self._prompts.text(asked.prompt, add_special_tokens=asked.add_special_tokens is not False)
        else:
            raise BadRequest("one of prompt and messages is required", "prompt")
        strings = self._prompts.tokenizer.pieces(tokens) if asked.return_token_strs else None
        count = {"count": len(tokens), "max_model_len": self._max_model_len, "tokens": tokens, "token_strs": strings}
        return web.json_response(count)

    async def detokenize(self, request: web.Request) -> web.Response:
        asked = parse(parse_json(await request.read()), DetokenizeRequest)
        self._shown(asked.model)
        return web.json_response({"prompt": self._prompts.tokenizer.decode(self._prompts.ids(asked.tokens))})

    async def models(self, _request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [self._model(name) for name in self._names]})

    async def reset_prefix_cache(self, _request: web.Request) -> web.Response:
        return web.json_response({"success": await self._client.reset_cache()})

    async def _body(self, request: web.Request) -> dict[str, Any]:
        """Raises `Busy` while the engine is shutting down."""
        if not self.accepting:
            raise Busy("The engine is shutting down and accepts no new requests.")
        return parse_json(await request.read())

    def _plan(self, body: dict[str, Any], asked: GenerationRequest) -> Plan:
        self._shown(asked.model)
        refuse_unsupported(body)
        return check(asked, self._config.defaults, self._config.eos_ids, self._config.vocab_size)

    def _prompt(self, tokens: list[int], asked: int | None, default: int | None, plan: Plan) -> Prompt:
        return Prompt(tokens, answer_tokens(asked, default, len(tokens), self._max_model_len, plan.sampling.min_tokens))

    async def _completion_tokens(self, given: str | list[int], add_special_tokens: bool) -> list[int]:
        if isinstance(given, str):
            return await self._prompts.text(given, add_special_tokens=add_special_tokens)
        return self._prompts.ids(given)

    def _shown(self, model: str | None) -> str:
        """The name to answer under. Raises `ModelNotFound`."""
        if model is None:
            return self._names[0]
        if model not in self._names:
            raise ModelNotFound(
                f"The model `{model}` does not exist. Valid aliases: {', '.join(self._names)}.", "model"
            )
        return model

    def _model(self, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "roundhouse",
            "root": self._names[0],
            "parent": None,
            "max_model_len": self._max_model_len,
        }
