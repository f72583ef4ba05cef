"""Routes, and the faults that strike before a request is looked at."""

import itertools
import time
from collections.abc import Callable
from secrets import token_hex
from typing import Final

import msgspec

from roundhouse_sim.bodies import (
    DetokenizeBody,
    TokenizeBody,
    check_model,
    decode_body,
    detokenize_prompt,
    parse_chat,
    parse_completion,
    tokenize_prompt,
)
from roundhouse_sim.engine import Engine
from roundhouse_sim.errors import ApiError, BadFault, bad_request
from roundhouse_sim.faults import Fault, FaultBoard, Kind, parse_fault
from roundhouse_sim.inference import Inference
from roundhouse_sim.kv_sockets import TOPIC
from roundhouse_sim.metrics import MetricsPage
from roundhouse_sim.model import model_file
from roundhouse_sim.replies import BROKEN, crash
from roundhouse_sim.server import Exchange
from roundhouse_sim.settings import Settings
from roundhouse_sim.shapes import error_body
from roundhouse_sim.tokens import decode, to_ids, token_strings

VERSION: Final = "0.1.0"
CONTROL_PREFIX: Final = "/sim/"
MODEL_PREFIX: Final = "/sim/model/"
METRICS_TYPE: Final = b"text/plain; version=1.0.0; charset=utf-8"

Handler = Callable[[Exchange, Fault | None], None]


class Service:
    """``handle(exchange)`` is the server's app."""

    def __init__(self, settings: Settings, engine: Engine, inference: Inference, page: MetricsPage) -> None:
        self._settings = settings
        self._engine = engine
        self._inference = inference
        self._page = page
        self._board = FaultBoard()
        self._ids = itertools.count(1)
        self._id_prefix = token_hex(4)
        self._created = int(time.time())
        for fault in settings.faults:
            self._arm(fault)
        self._routes: dict[str, dict[str, Handler]] = {
            "/health": {"GET": self._health},
            "/ping": {"GET": self._health, "POST": self._health},
            "/version": {"GET": self._version},
            "/load": {"GET": self._load},
            "/metrics": {"GET": self._metrics},
            "/kv_event_sources": {"GET": self._event_sources},
            "/v1/models": {"GET": self._models},
            "/v1/chat/completions": {"POST": self._chat},
            "/v1/completions": {"POST": self._completion},
            "/tokenize": {"POST": self._tokenize},
            "/detokenize": {"POST": self._detokenize},
            "/reset_prefix_cache": {"POST": self._reset_cache},
            "/sim/faults": {"GET": self._list_faults, "POST": self._arm_fault, "DELETE": self._disarm_faults},
        }

    def handle(self, exchange: Exchange) -> None:
        exchange.request_id = exchange.headers.get(b"x-request-id") or self._new_id()
        path = exchange.path.partition("?")[0]
        fault = None if path.startswith(CONTROL_PREFIX) else self._board.take(path)
        if fault is not None and self._strike(exchange, path, fault):
            return
        try:
            self._find(exchange.method, path)(exchange, fault)
        except ApiError as error:
            exchange.respond(error.status, error_body(error))

    def _find(self, method: str, path: str) -> Handler:
        if path.startswith(MODEL_PREFIX) and method == "GET":
            return self._model_file
        methods = self._routes.get(path)
        if methods is None:
            return lambda exchange, _: _json(exchange, {"detail": "Not Found"}, 404)
        return methods.get(method) or (lambda exchange, _: _json(exchange, {"detail": "Method Not Allowed"}, 405))

    def _strike(self, exchange: Exchange, path: str, fault: Fault) -> bool:
        """Faults that need no answer; True when the request is dealt with."""
        kind = fault.fault
        if kind is Kind.REFUSE:
            exchange.reset()
        elif kind is Kind.SILENCE:
            exchange.start_stream()
        elif kind is Kind.STATUS:
            error = ApiError(fault.status, "ScriptedFault", "scripted fault")
            exchange.respond(error.status, error_body(error))
        elif fault.immediate_crash:
            crash()
        elif kind is not Kind.HANG and self._routes.get(path, {}).get("POST") not in (self._chat, self._completion):
            self._strike_plain(exchange, kind)
        else:
            return kind is Kind.HANG
        return True

    def _strike_plain(self, exchange: Exchange, kind: Kind) -> None:
        """A mid-stream fault on a request that has no stream strikes at once."""
        if kind is Kind.RESET:
            exchange.reset()
        elif kind is Kind.CRASH:
            crash()
        else:
            exchange.respond(BROKEN.status, error_body(BROKEN))

    def _chat(self, exchange: Exchange, fault: Fault | None) -> None:
        self._inference.admit()
        self._inference.answer(exchange, parse_chat(exchange.body, self._settings), fault)

    def _completion(self, exchange: Exchange, fault: Fault | None) -> None:
        self._inference.admit()
        self._inference.answer(exchange, parse_completion(exchange.body, self._settings), fault)

    def _tokenize(self, exchange: Exchange, fault: Fault | None) -> None:
        body = decode_body(TokenizeBody, exchange.body)
        check_model(body.model, self._settings)
        tokens = tokenize_prompt(body)
        ids = to_ids(tokens)
        strings = token_strings(tokens) if body.return_token_strs else None
        limit = self._settings.context_limit
        _json(exchange, {"count": len(ids), "max_model_len": limit, "tokens": ids, "token_strs": strings})

    def _detokenize(self, exchange: Exchange, fault: Fault | None) -> None:
        body = decode_body(DetokenizeBody, exchange.body)
        check_model(body.model, self._settings)
        _json(exchange, {"prompt": decode(detokenize_prompt(body))})

    def _models(self, exchange: Exchange, fault: Fault | None) -> None:
        fixed = {"object": "model", "created": self._created, "owned_by": "roundhouse-sim", "root": "roundhouse-sim"}
        fixed |= {"parent": None, "max_model_len": self._settings.context_limit, "permission": []}
        _json(exchange, {"object": "list", "data": [{"id": name, **fixed} for name in self._settings.served_names]})

    def _health(self, exchange: Exchange, fault: Fault | None) -> None:
        exchange.respond(200, b"")

    def _version(self, exchange: Exchange, fault: Fault | None) -> None:
        _json(exchange, {"version": VERSION})

    def _load(self, exchange: Exchange, fault: Fault | None) -> None:
        _json(exchange, {"server_load": self._inference.in_flight})

    def _metrics(self, exchange: Exchange, fault: Fault | None) -> None:
        exchange.respond(200, self._page.render(), METRICS_TYPE)

    def _event_sources(self, exchange: Exchange, fault: Fault | None) -> None:
        settings = self._settings
        source = {
            "enable_kv_cache_events": bool(settings.kv_events),
            "publisher": "zmq" if settings.kv_events else "null",
            "endpoint": settings.kv_events,
            "replay_endpoint": settings.kv_replay or None,
            "buffer_steps": settings.kv_buffer_steps,
            "topic": TOPIC.decode(),
        }
        _json(exchange, {"0": source})

    def _reset_cache(self, exchange: Exchange, fault: Fault | None) -> None:
        _json(exchange, {"success": self._engine.clear_cache()})

    def _model_file(self, exchange: Exchange, fault: Fault | None) -> None:
        try:
            body = model_file(exchange.path.removeprefix(MODEL_PREFIX))
        except KeyError:
            _json(exchange, {"detail": "Not Found"}, 404)
        else:
            exchange.respond(200, body, b"application/octet-stream")

    def _list_faults(self, exchange: Exchange, fault: Fault | None) -> None:
        _json(exchange, {"v": 1, "faults": self._board.armed})

    def _arm_fault(self, exchange: Exchange, fault: Fault | None) -> None:
        try:
            armed = parse_fault(exchange.body)
        except BadFault as error:
            raise bad_request(str(error), "fault") from error
        if armed.immediate_crash:
            crash()
        self._arm(armed)
        self._list_faults(exchange, None)

    def _disarm_faults(self, exchange: Exchange, fault: Fault | None) -> None:
        self._board.disarm()
        self._engine.slow_down(1.0)
        self._list_faults(exchange, None)

    def _arm(self, fault: Fault) -> None:
        self._board.arm(fault)
        self._engine.slow_down(self._board.slowdown)

    def _new_id(self) -> bytes:
        return f"{self._id_prefix}{next(self._ids):08x}".encode()


def _json(exchange: Exchange, value: object, status: int = 200) -> None:
    exchange.respond(status, msgspec.json.encode(value))
