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

from roundhouse_torch.errors import AdapterNotFound, BadAdapter, Busy, ModelNotFound, require
from roundhouse_torch.messages.command import Add, LoadAdapter, ResetCache, Sampling, UnloadAdapter
from roundhouse_torch.messages.report import Loaded
from roundhouse_torch.models.config import ModelConfig
from roundhouse_torch.server import requests
from roundhouse_torch.server.answer import answer
from roundhouse_torch.server.engine_client import EngineClient
from roundhouse_torch.server.generation import Generation, Prompt
from roundhouse_torch.server.middleware import REQUEST_ID
from roundhouse_torch.server.output_parser import CALL, CALL_END, CLOSE, OPEN, OutputParser, thinking_of
from roundhouse_torch.server.prompts import Prompts
from roundhouse_torch.server.requests import MAX_ANSWERS, Plan
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
        body, chat = await self._read(request, requests.ChatRequest)
        plan = self._plan(body, chat)
        tools = tool_use(chat.tools, chat.tool_choice, chat.parallel_tool_calls, self._notation)
        text, tokens = await self._prompts.chat(body, add_special_tokens=chat.add_special_tokens)
        thinking = thinking_of(text) if self._thinks else ""
        parser = partial(OutputParser, thinking, tools) if thinking or tools is not None else None
        if tools is not None and tools.structure is not None:
            plan = replace(plan, structure=tools.structure)
        if parser is not None and self._tags_hidden:
            plan = replace(plan, skip_special_tokens=False)
        prompts = [self._prompt(tokens, None, plan, thinking)]
        shape = ChatShape(
            request[REQUEST_ID], self._shown(chat.model), show_tokens=chat.return_token_ids, parser=parser,
            named_tool=tools is not None and tools.named,
        )  # fmt: skip
        generation = Generation(self._client, self._prompts.tokenizer, prompts, plan, arrived)
        return await answer(request, generation, shape, keep_alive_s=self._keep_alive_s)

    async def completion(self, request: web.Request) -> web.StreamResponse:
        arrived = time.monotonic()
        body, asked = await self._read(request, requests.CompletionRequest)
        plan, prompts = self._plan(body, asked), []
        for given in requests.texts_or_ids(asked.prompt, "prompt"):
            tokens = await self._prompts.tokens(given, add_special_tokens=asked.add_special_tokens)
            prompt = self._prompt(tokens, requests.DEFAULT_COMPLETION_TOKENS, plan)
            if asked.echo:
                text = given if isinstance(given, str) else self._prompts.tokenizer.decode(given)
                prompt = replace(prompt, echo=text)
            prompts.append(prompt)
        require(len(prompts) * asked.n <= MAX_ANSWERS, f"prompts × n must be at most {MAX_ANSWERS}", "prompt")
        shape = CompletionShape(request[REQUEST_ID], self._shown(asked.model), show_tokens=asked.return_token_ids)
        generation = Generation(self._client, self._prompts.tokenizer, prompts, plan, arrived)
        return await answer(request, generation, shape, keep_alive_s=self._keep_alive_s)

    async def embeddings(self, request: web.Request) -> web.Response:
        """The last token's hidden state, of length 1."""
        arrived = time.monotonic()
        _, asked = await self._read(request, requests.EmbeddingRequest)
        size = self._config.hidden_size
        require(asked.dimensions in (None, size), f"dimensions must be {size}, which this model gives", "dimensions")
        model, adapter = self._shown(asked.model), self._adapter(asked.model)
        inputs = requests.texts_or_ids(asked.input, "input")
        require(len(inputs) <= MAX_ANSWERS, f"input must have at most {MAX_ANSWERS} items", "input")
        adds: list[Add] = []
        vectors: dict[int, bytes] = {}
        for id, given in zip(self._client.new_ids(len(inputs)), inputs, strict=True):
            tokens = await self._prompts.tokens(given, add_special_tokens=asked.add_special_tokens)
            requests.answer_tokens(1, None, len(tokens), self._max_model_len, 0)
            adds.append(Add(id, tokens, len(tokens) + 1, Sampling(), asked.cache_salt, adapter, pooled=True))
        async with self._client.answers(adds, arrived=arrived, params_n=1) as mailbox:
            while len(vectors) < len(adds):
                output = await mailbox.take()
                if output.vector is None:
                    raise Busy(output.error or "The engine is shutting down.")
                vectors[output.id] = output.vector
        data = [
            {"index": index, "object": "embedding", "embedding": _embedding(vectors[add.id], asked.encoding_format)}
            for index, add in enumerate(adds)
        ]
        total = sum(len(add.tokens) for add in adds)
        usage = {"prompt_tokens": total, "total_tokens": total, "completion_tokens": 0, "prompt_tokens_details": None}
        head = {"id": f"embd-{request[REQUEST_ID]}", "object": "list", "created": int(time.time()), "model": model}
        return web.json_response({**head, "data": data, "usage": usage})

    async def tokenize(self, request: web.Request) -> web.Response:
        body, asked = await self._read(request, requests.TokenizeRequest, engine=False)
        self._shown(asked.model)
        special = asked.add_special_tokens
        if asked.messages is not None:
            _, tokens = await self._prompts.chat(body, add_special_tokens=bool(special))
        else:
            require(asked.prompt is not None, "one of prompt and messages is required", "prompt")
            tokens = await self._prompts.tokens(asked.prompt or "", add_special_tokens=special is not False)
        strings = self._prompts.tokenizer.pieces(tokens) if asked.return_token_strs else None
        count = {"count": len(tokens), "max_model_len": self._max_model_len, "tokens": tokens, "token_strs": strings}
        return web.json_response(count)

    async def detokenize(self, request: web.Request) -> web.Response:
        _, asked = await self._read(request, requests.DetokenizeRequest, engine=False)
        self._shown(asked.model)
        tokens = await self._prompts.tokens(asked.tokens, add_special_tokens=False)
        return web.json_response({"prompt": self._prompts.tokenizer.decode(tokens)})

    async def models(self, _request: web.Request) -> web.Response:
        base = self._names[0]
        models: list[tuple[str, str, str | None]] = [(name, base, None) for name in self._names]
        models += [(name, folder, base) for name, folder in self._adapters.items()]
        common = {"object": "model", "created": self._created, "owned_by": "roundhouse"}
        data = [
            {"id": name, **common, "root": root, "parent": parent, "max_model_len": self._max_model_len}
            for name, root, parent in models
        ]
        return web.json_response({"object": "list", "data": data})

    async def load_adapter(self, request: web.Request) -> web.Response:
        _, asked = await self._read(request, requests.AdapterRequest)
        name, folder = asked.lora_name, asked.lora_path
        if not folder:
            raise BadAdapter("Both 'lora_name' and 'lora_path' must be provided.", "lora_path")
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
        _, asked = await self._read(request, requests.AdapterRequest)
        name = asked.lora_name
        if self._adapters.pop(name, None) is None:
            raise AdapterNotFound(f"The lora adapter '{name}' cannot be found.", "lora_name")
        await self._client.obey(UnloadAdapter, name)
        return web.Response(text=f"Success: LoRA adapter '{name}' removed successfully.")

    async def reset_prefix_cache(self, _request: web.Request) -> web.Response:
        return web.json_response({"success": not await self._client.obey(ResetCache)})

    async def _read(
        self, request: web.Request, kind: type[requests.Body], *, engine: bool = True
    ) -> tuple[dict[str, Any], requests.Body]:
        """The body as it came and as it is understood. Raises `Busy` when ``engine`` is needed and shutting down."""
        if engine and not self.accepting:
            raise Busy("The engine is shutting down and accepts no new requests.")
        body = requests.parse_json(await request.read())
        return body, requests.parse(body, kind)

    def _plan(self, body: dict[str, Any], asked: requests.GenerationRequest) -> Plan:
        self._shown(asked.model)
        requests.refuse_unsupported(body)
        plan = requests.check(asked, self._config.defaults, self._config.eos_ids, self._config.vocab_size)
        return replace(plan, adapter=self._adapter(asked.model))

    def _prompt(self, tokens: list[int], default: int | None, plan: Plan, thinking: str = "") -> Prompt:
        """``default``: max_tokens of a request that does not say."""
        asked, least = plan.asked.asked_tokens, plan.sampling.min_tokens
        allowed = requests.answer_tokens(asked, default, len(tokens), self._max_model_len, least)
        return Prompt(tokens, allowed, plan.structure.after(thinking) if plan.structure is not None else "")

    def _adapter(self, model: str | None) -> str:
        return model if model is not None and model in self._adapters else ""

    def _shown(self, model: str | None) -> str:
        """The name to answer under. Raises `ModelNotFound`."""
        if model is None:
            return self._names[0]
        if model not in self._names and model not in self._adapters:
            valid = ", ".join((*self._names, *self._adapters))
            raise ModelNotFound(f"The model `{model}` does not exist. Valid aliases: {valid}.", "model")
        return model


def _embedding(vector: bytes, encoding: str) -> "str | list[float]":
    return base64.b64encode(vector).decode() if encoding == "base64" else array("f", vector).tolist()
