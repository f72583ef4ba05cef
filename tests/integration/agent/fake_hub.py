"""A model hub on loopback that speaks the part of the Hugging Face hub's API that downloads use."""

import asyncio
import hashlib
import json
from dataclasses import dataclass, field
from typing import Self

from aiohttp import web

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = (".safetensors", ".gguf")


@dataclass
class FakeHub:
    """``files``: repository → name → content. ``wrong``: names announced with another hash than they have.

    ``cut``: names whose next download breaks off after so many bytes, ``stall``: goes no further then. ``gated``:
    repositories that need ``token``.
    ``requests`` lists (method, path, Range header) of every file request.
    """

    files: dict[str, dict[str, bytes]]
    token: str = ""
    gated: set[str] = field(default_factory=set)
    wrong: set[str] = field(default_factory=set)
    cut: dict[str, int] = field(default_factory=dict)
    stall: dict[str, int] = field(default_factory=dict)
    stalled: asyncio.Event = field(default_factory=asyncio.Event)
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    url: str = ""

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/api/models/{org}/{name}/revision/{revision:.+}", self._info)
        app.router.add_get("/api/models/{org}/{name}/tree/{revision}", self._tree)
        app.router.add_get("/{org}/{name}/resolve/{revision}/{file:.+}", self._file)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._runner.cleanup()

    def downloads(self, name: str) -> list[str]:
        """Range headers of the downloads of one file."""
        return [sent for method, path, sent in self.requests if method == "GET" and path == name]

    async def _info(self, request: web.Request) -> web.Response:
        if (refusal := self._refusal(request)) is not None:
            return refusal
        if request.match_info["revision"] not in ("main", COMMIT):
            return web.json_response({"error": "no"}, status=404, headers={"x-error-code": "RevisionNotFound"})
        repo = _repo(request)
        siblings = [{"rfilename": name, **self._meta(name, data)} for name, data in self.files[repo].items()]
        return web.json_response({"id": repo, "modelId": repo, "sha": COMMIT, "siblings": siblings, "tags": []})

    async def _tree(self, request: web.Request) -> web.Response:
        if (refusal := self._refusal(request)) is not None:
            return refusal
        entries = []
        for name, data in self.files[_repo(request)].items():
            meta = self._meta(name, data)
            lfs = {"lfs": {**meta["lfs"], "oid": meta["lfs"]["sha256"]}} if "lfs" in meta else {}
            entries.append({"type": "file", "path": name, "size": len(data), "oid": meta["blobId"], **lfs})
        return web.json_response(entries)

    async def _file(self, request: web.Request) -> web.StreamResponse:
        name, sent = request.match_info["file"], request.headers.get("Range", "")
        self.requests.append((request.method, name, sent))
        if (refusal := self._refusal(request)) is not None:
            return refusal
        data = self.files[_repo(request)].get(name)
        if data is None:
            return web.json_response({"error": "no"}, status=404, headers={"x-error-code": "EntryNotFound"})
        start = int(sent.removeprefix("bytes=").split("-")[0]) if sent else 0
        meta = self._meta(name, data)
        etag = meta["lfs"]["sha256"] if "lfs" in meta else meta["blobId"]
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if sent:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        response = web.StreamResponse(status=206 if sent else 200, headers=headers)
        response.content_length = len(data) - start
        await response.prepare(request)
        if request.method == "GET":
            cut, stall = self.cut.pop(name, None), self.stall.pop(name, None)
            await response.write(data[start : cut or stall])
            if stall is not None:
                self.stalled.set()
                await asyncio.Event().wait()
            if cut is not None:
                assert request.transport is not None
                request.transport.abort()
        return response

    def _meta(self, name: str, data: bytes) -> dict[str, object]:
        blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        digest = hashlib.sha256(data + (b"!" if name in self.wrong else b"")).hexdigest()
        lfs = {"lfs": {"sha256": digest, "size": len(data), "pointerSize": 134}} if name.endswith(LARGE) else {}
        return {"size": len(data), "blobId": blob, **lfs}

    def _refusal(self, request: web.Request) -> web.Response | None:
        repo, sent = _repo(request), request.headers.get("Authorization", "")
        if repo not in self.files:
            # The hub does not tell a private repository from one that does not exist.
            return web.json_response({"error": "no"}, status=401, headers={"x-error-code": "RepoNotFound"})
        if repo in self.gated and sent != f"Bearer {self.token}":
            status = 403 if sent else 401
            return web.json_response({"error": "gated"}, status=status, headers={"x-error-code": "GatedRepo"})
        return None


def _repo(request: web.Request) -> str:
    return f"{request.match_info['org']}/{request.match_info['name']}"


def small_model() -> dict[str, bytes]:
    """A repository in the Hugging Face layout; the weights are no real ones."""
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    return {
        "config.json": json.dumps(config).encode(),
        "tokenizer.json": b'{"model": {"type": "BPE", "vocab": {}, "merges": []}}',
        "tokenizer_config.json": b"{}",
        "model.safetensors": bytes(range(256)) * 40_000,
        "pytorch_model.bin": b"never fetched",
        "onnx/model.onnx": b"never fetched",
    }
