"""The endpoints that run or describe the model."""

import asyncio
import base64
import time
from array import array
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web

from roundhouse_torch.errors import AdapterNotFound, BadAdapter, BadRequest, Busy, ModelNotFound
from roundhouse_torch.messages.command import Add, LoadAdapter, ResetCache, Sampling, UnloadAdapter
from roundhouse_torch.messages.report import Loaded
from roundhouse_torch.models.config import ModelConfig
from roundhouse_torch.server.answer import answer
from roundhouse_torch.server.engine_client import EngineClient
from roundhouse_torch.server.generation import Generation, Prompt
from roundhouse_torch.server.identity import REQUEST_ID
from roundhouse_torch.server.output_parser import CALL, CALL_END, CLOSE, OPEN, OutputParser, thinking_of
from roundhouse_torch.server.prompts import Prompts
from roundhouse_torch.server.requests import (
    DEFAULT_COMPLETION_TOKENS,
    MAX_ANSWERS,
    AdapterRequest,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    EmbeddingRequest,
    GenerationRequest,
    Plan,
    TokenizeRequest,
    answer_tokens,
    check,
    parse,
    parse_json,
    refuse_unsupported,
    texts_or_ids,
)
from roundhouse_torch.server.shapes import ChatShape, CompletionShape
from roundhouse_torch.server.tools import notation_of, tool_use
from roundhouse_torch.settings import EngineSettings


class Service:
    """``accepting`` False: only what runs already is finished."""

    def __init__(
        self, client: EngineClient, prompts: Prompts, config: ModelConfig, loaded: Loaded, settings: EngineSettings
    ) -> None:
        self._client = client
        self._prompts = prompts
        self._config = config
        self._max_model_len = loaded.max_model_len
        self._names = settings.names
        self._adapters = dict(settings.adapters)
        self._keep_alive_s = settings.sse_keep_alive_interval
        template = prompts.template.source
        notation, thinks = settings.tool_call_parser, settings.reasoning_parser
        self._notation = notation_of(template) if notation == "auto" else notation.replace("none", "")
        self._thinks = CLOSE in template if thinks == "auto" else thinks == "think"
        self._tags_hidden = prompts.tokenizer.hides((OPEN, CLOSE, CALL, CALL_END))
        self._created = int(time.time())
        self.accepting = True

    async def chat(self, request: web.Request) -> web.StreamResponse:
        arrived = time.monotonic()
        body = await self._body(request)
        chat = parse(body, ChatRequest)
        plan = self._plan(body, chat)
        tools = tool_use(chat.tools, chat.tool_choice, chat.parallel_tool_calls is not False, self._notation)
        structure = (tools.structure if tools is not None else None) or plan.structure
        plan = replace(plan, structure=structure)
        text, tokens = await self._prompts.chat(body, add_special_tokens=chat.add_special_tokens)
        thinking = thinking_of(text) if self._thinks else ""
        parser = partial(OutputParser, thinking, tools) if thinking or tools is not None else None
        if parser is not None and self._tags_hidden:
            plan = replace(plan, rules=replace(plan.rules, skip_special_tokens=False))
        prompt = self._prompt(tokens, chat.asked_tokens, None, plan, thinking)
        generation = Generation(self._client, self._prompts.tokenizer, [prompt], plan, arrived)
        shape = ChatShape(
            request[REQUEST_ID], self._shown(chat.model), show_tokens=plan.return_token_ids, parser=parser,
            named_tool=tools is not None and tools.named,
        )  # fmt: skip
        return await answer(request, generation, shape, plan, keep_alive_s=self._keep_alive_s)

    async def completion(self, request: web.Request) -> web.StreamResponse:
        arrived = time.monotonic()
        body = await self._body(request)
        completion = parse(body, CompletionRequest)
        plan = self._plan(body, completion)
        prompts, echo = [], []
        for given in completion.prompts:
            tokens = await self._tokens(given, completion.add_special_tokens)
            prompts.append(self._prompt(tokens, completion.max_tokens, DEFAULT_COMPLETION_TOKENS, plan))
            text = given if isinstance(given, str) else self._prompts.tokenizer.decode(given)
            echo += [text] * plan.n if completion.echo else []
        if len(prompts) * plan.n > MAX_ANSWERS:
            raise BadRequest(f"prompts × n must be at most {MAX_ANSWERS}", "prompt")
        generation = Generation(self._client, self._prompts.tokenizer, prompts, plan, arrived)
        shape = CompletionShape(request[REQUEST_ID], self._shown(completion.model), show_tokens=plan.return_token_ids)
        return await answer(request, generation, shape, plan, echo=echo, keep_alive_s=self._keep_alive_s)

    async def embeddings(self, request: web.Request) -> web.Response:
        """The last token's hidden state, of length 1."""
        arrived = time.monotonic()
        asked = parse(await self._body(request), EmbeddingRequest)
        if asked.dimensions not in (None, self._config.hidden_size):
            raise BadRequest(f"dimensions must be {self._config.hidden_size}, which this model gives", "dimensions")
        model, adapter = self._shown(asked.model), self._adapter(asked.model)
        prompts = [await self._tokens(given, asked.add_special_tokens) for given in texts_or_ids(asked.input, "input")]
        if len(prompts) > MAX_ANSWERS:
            raise BadRequest(f"input must have at most {MAX_ANSWERS} items", "input")
        for tokens in prompts:
            answer_tokens(1, None, len(tokens), self._max_model_len, 0)
        adds = [
            Add(id, tokens, len(tokens) + 1, Sampling(), asked.cache_salt or "", adapter, pooled=True)
            for id, tokens in zip(self._client.new_ids(len(prompts)), prompts, strict=True)
        ]
        vectors: dict[int, bytes] = {}
        async with self._client.answers(adds, arrived=arrived, params_n=1) as mailbox:
            while len(vectors) < len(adds):
                for output in await mailbox.take():
                    if output.vector is None:
                        raise Busy(output.error or "The engine is shutting down.")
                    vectors[output.id] = output.vector
        data = [
            {"index": index, "object": "embedding", "embedding": _embedding(vectors[add.id], asked.encoding_format)}
            for index, add in enumerate(adds)
        ]
        total = sum(map(len, prompts))
        usage = {"prompt_tokens": total, "total_tokens": total, "completion_tokens": 0, "prompt_tokens_details": None}
        head = {"id": f"embd-{request[REQUEST_ID]}", "object": "list", "created": int(time.time()), "model": model}
        return web.json_response({**head, "data": data, "usage": usage})

    async def tokenize(self, request: web.Request) -> web.Response:
        body = parse_json(await request.read())
        asked = parse(body, TokenizeRequest)
        self._shown(asked.model)
        if asked.messages is not None:
            _, tokens = await self._prompts.chat(body, add_special_tokens=bool(asked.add_special_tokens))
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
        models = [self._model(name, self._names[0], None) for name in self._names]
        models += [self._model(name, folder, self._names[0]) for name, folder in self._adapters.items()]
        return web.json_response({"object": "list", "data": models})

    async def load_adapter(self, request: web.Request) -> web.Response:
        asked = parse(await self._body(request), AdapterRequest)
        name, folder = asked.lora_name, asked.lora_path
        if not name or not folder:
            raise BadAdapter("Both 'lora_name' and 'lora_path' must be provided.", "lora_path" if name else "lora_name")
        if name in self._names or (name in self._adapters and not asked.load_inplace):
            raise BadAdapter(
                f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set "
                "'load_inplace' to True.",
                "lora_name",
            )
        if not await asyncio.to_thread(Path(folder).is_dir):
            raise AdapterNotFound(f"lora_path {folder} is no folder", "lora_path")
        error = await self._client.obey(LoadAdapter, name, folder)
        if error:
            raise BadAdapter(error, "lora_path")
        self._adapters[name] = folder
        return web.Response(text=f"Success: LoRA adapter '{name}' added successfully.")

    async def unload_adapter(self, request: web.Request) -> web.Response:
        name = parse(await self._body(request), AdapterRequest).lora_name
        if self._adapters.pop(name, None) is None:
            raise AdapterNotFound(f"The lora adapter '{name}' cannot be found.", "lora_name")
        await self._client.obey(UnloadAdapter, name)
        return web.Response(text=f"Success: LoRA adapter '{name}' removed successfully.")

    async def reset_prefix_cache(self, _request: web.Request) -> web.Response:
        return web.json_response({"success": not await self._client.obey(ResetCache)})

    async def _body(self, request: web.Request) -> dict[str, Any]:
        """Raises `Busy` while the engine is shutting down."""
        if not self.accepting:
            raise Busy("The engine is shutting down and accepts no new requests.")
        return parse_json(await request.read())

    def _plan(self, body: dict[str, Any], asked: GenerationRequest) -> Plan:
        self._shown(asked.model)
        refuse_unsupported(body)
        plan = check(asked, self._config.defaults, self._config.eos_ids, self._config.vocab_size)
        return replace(plan, adapter=self._adapter(asked.model))

    def _prompt(
        self, tokens: list[int], asked: int | None, default: int | None, plan: Plan, thinking: str = ""
    ) -> Prompt:
        allowed = answer_tokens(asked, default, len(tokens), self._max_model_len, plan.sampling.min_tokens)
        return Prompt(tokens, allowed, plan.structure.after(thinking) if plan.structure is not None else "")

    def _adapter(self, model: str | None) -> str:
        return model if model is not None and model in self._adapters else ""

    async def _tokens(self, given: str | list[int], add_special_tokens: bool) -> list[int]:
        if isinstance(given, str):
            return await self._prompts.text(given, add_special_tokens=add_special_tokens)
        return self._prompts.ids(given)

    def _shown(self, model: str | None) -> str:
        """The name to answer under. Raises `ModelNotFound`."""
        if model is None:
            return self._names[0]
        if model not in self._names and model not in self._adapters:
            valid = ", ".join((*self._names, *self._adapters))
            raise ModelNotFound(f"The model `{model}` does not exist. Valid aliases: {valid}.", "model")
        return model

    def _model(self, name: str, root: str, parent: str | None) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "roundhouse",
            "root": root,
            "parent": parent,
            "max_model_len": self._max_model_len,
        }


def _embedding(vector: bytes, encoding: str) -> "str | list[float]":
    return base64.b64encode(vector).decode() if encoding == "base64" else array("f", vector).tolist()
