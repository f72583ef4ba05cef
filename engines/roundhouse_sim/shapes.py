"""The bytes of answers, field by field as vLLM sends them."""

from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from roundhouse_sim.errors import ApiError
from roundhouse_sim.job import Job
from roundhouse_sim.tokens import to_ids

FINGERPRINT: Final = "roundhouse-sim"
DONE: Final = b"data: [DONE]\n\n"

_json = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Counts:
    """Tokens of one request: all its prompts, all its answers."""

    prompt: int
    completion: int
    cached: int
    created: int


def error_body(error: ApiError) -> bytes:
    return _json(_error(error))


def error_event(error: ApiError) -> bytes:
    return b"data: %s\n\n" % _json(_error(error))


def _error(error: ApiError) -> dict[str, object]:
    return {"error": {"message": error.message, "type": error.kind, "param": error.param, "code": error.status}}


class Shape(Protocol):
    """One kind of answer. ``usage`` is given only where every event carries it."""

    def opening(self, index: int, job: Job, usage: Counts | None) -> bytes | None:
        """What comes before the first text of a choice."""
        ...

    def delta(self, index: int, job: Job, start: int, usage: Counts | None) -> bytes:
        """The tokens of ``job`` from ``start`` on; the choice's last event once the job has a ``finish``."""
        ...

    def usage(self, counts: Counts) -> bytes:
        """The event with empty ``choices``."""
        ...

    def whole(self, jobs: list[Job], counts: Counts) -> bytes: ...


class ChatShape:
    def __init__(self, request_id: str, created: int, model: str, *, token_ids: bool) -> None:
        self._token_ids = token_ids
        self._head = f'"id":"chatcmpl-{request_id}","object":"chat.completion'.encode()
        self._tail = b'","created":%d,"model":%s,"choices":[' % (created, _json(model))
        self._event = b"data: {" + self._head + b".chunk" + self._tail

    def opening(self, index: int, job: Job, usage: Counts | None) -> bytes | None:
        return (
            b'%s{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]%s%s}\n\n'
            % (
                self._event,
                index,
                self._usage(usage),
                b',"prompt_token_ids":%s,"prompt_text":null' % _json(to_ids(job.prompt) if self._token_ids else None),
            )
        )

    def delta(self, index: int, job: Job, start: int, usage: Counts | None) -> bytes:
        reason = b"null"
        if job.finish:
            reason = b'%s,"stop_reason":%s' % (_json(job.finish), _json(job.stop_reason))
        return b'%s{"index":%d,"delta":{"content":%s},"logprobs":null,"finish_reason":%s,"token_ids":%s}]%s%s}\n\n' % (
            self._event,
            index,
            _json(job.text(start)),
            reason,
            _json(to_ids(job.answer[start : job.generated])) if self._token_ids else b"null",
            self._usage(usage),
            b',"system_fingerprint":"%s"' % FINGERPRINT.encode() if job.finish == "abort" else b"",
        )

    def usage(self, counts: Counts) -> bytes:
        usage = _totals(counts) | {"prompt_tokens_details": _details(counts)}
        return b'%s],"usage":%s,"system_fingerprint":"%s"}\n\n' % (self._event, _json(usage), FINGERPRINT.encode())

    def whole(self, jobs: list[Job], counts: Counts) -> bytes:
        rest = {
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": _totals(counts)
            | {
                "prompt_tokens_details": _details(counts) | {"multimodal_tokens": None},
                "completion_tokens_details": None,
            },
            "prompt_logprobs": None,
            "prompt_token_ids": to_ids(jobs[0].prompt) if self._token_ids else None,
            "prompt_text": None,
            "kv_transfer_params": None,
        }
        choices = b",".join(_json(self._choice(index, job)) for index, job in enumerate(jobs))
        return b"{%s%s%s],%s" % (self._head, self._tail, choices, _json(rest)[1:])

    def _choice(self, index: int, job: Job) -> dict[str, object]:
        message = {"role": "assistant", "content": job.text(), "refusal": None, "annotations": None, "audio": None}
        return {
            "index": index,
            "message": message | {"function_call": None, "reasoning": None},
            "logprobs": None,
            "finish_reason": job.finish,
            "stop_reason": job.stop_reason,
            "token_ids": to_ids(job.answer[: job.generated]) if self._token_ids else None,
        }

    def _usage(self, counts: Counts | None) -> bytes:
        if counts is None:
            return b""
        return b',"usage":%s' % _json(_totals(counts) | {"completion_tokens_details": None})


class CompletionShape:
    def __init__(self, request_id: str, created: int, model: str, *, token_ids: bool) -> None:
        self._token_ids = token_ids
        head = f'{{"id":"cmpl-{request_id}","object":"text_completion","created":{created},"model":'
        self._head = b'%s%s,"choices":[' % (head.encode(), _json(model))
        self._event = b"data: " + self._head

    def opening(self, index: int, job: Job, usage: Counts | None) -> bytes | None:
        return None

    def delta(self, index: int, job: Job, start: int, usage: Counts | None) -> bytes:
        choice: dict[str, object] = {"index": index, "text": job.text(start), "logprobs": None}
        choice |= {"finish_reason": job.finish, "stop_reason": job.stop_reason if job.finish else None}
        choice["prompt_token_ids"] = to_ids(job.prompt) if self._token_ids and not start else None
        choice["token_ids"] = to_ids(job.answer[start : job.generated]) if self._token_ids else None
        return b"%s%s]%s%s}\n\n" % (
            self._event,
            _json(choice),
            b"" if usage is None else b',"usage":%s' % _json(_totals(usage)),
            b',"system_fingerprint":"%s"' % FINGERPRINT.encode() if job.finish == "abort" else b"",
        )

    def usage(self, counts: Counts) -> bytes:
        usage = _totals(counts) | {"prompt_tokens_details": {"cached_tokens": counts.cached}}
        return b'%s],"usage":%s,"system_fingerprint":"%s"}\n\n' % (self._event, _json(usage), FINGERPRINT.encode())

    def whole(self, jobs: list[Job], counts: Counts) -> bytes:
        usage = _totals(counts) | {"prompt_tokens_details": {"cached_tokens": counts.cached}}
        rest = {"service_tier": None, "system_fingerprint": FINGERPRINT, "usage": usage, "kv_transfer_params": None}
        choices = b",".join(_json(self._choice(index, job)) for index, job in enumerate(jobs))
        return b"%s%s],%s" % (self._head, choices, _json(rest)[1:])

    def _choice(self, index: int, job: Job) -> dict[str, object]:
        return {
            "index": index,
            "text": job.text(),
            "logprobs": None,
            "finish_reason": job.finish,
            "stop_reason": job.stop_reason,
            "token_ids": to_ids(job.answer[: job.generated]) if self._token_ids else None,
            "prompt_logprobs": None,
            "prompt_token_ids": to_ids(job.prompt) if self._token_ids else None,
        }


def _totals(counts: Counts) -> dict[str, object]:
    total = counts.prompt + counts.completion
    return {"prompt_tokens": counts.prompt, "total_tokens": total, "completion_tokens": counts.completion}


def _details(counts: Counts) -> dict[str, object]:
    return {"cached_tokens": counts.cached, "created_cache_tokens": counts.created}
