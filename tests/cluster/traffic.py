"""Clients that stream answers one after the other, and what went wrong for them."""

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit


@dataclass
class Traffic:
    """``broken``: what each failed request came to. ``finished``: streams that ended as they should."""

    finished: int = 0
    broken: list[str] = field(default_factory=list)
    replicas: set[str] = field(default_factory=set)
    begun: int = 0

    def __post_init__(self) -> None:
        self.stop = threading.Event()
        self.lock = threading.Lock()


@contextmanager
def streaming(url: str, model: str, *, clients: int, tokens: int, prompt: str = "Hello") -> Iterator[Traffic]:
    """``clients`` clients at once until the block ends; then each ends the stream that it has."""
    traffic = Traffic()
    body = {"model": model, "stream": True, "max_tokens": tokens}
    threads = [
        threading.Thread(
            target=_client,
            args=(traffic, url, {**body, "messages": [{"role": "user", "content": f"{number}: {prompt}"}]}),
        )
        for number in range(clients)
    ]
    for thread in threads:
        thread.start()
    try:
        yield traffic
    finally:
        traffic.stop.set()
        for thread in threads:
            thread.join(120)


def _client(traffic: Traffic, url: str, body: dict[str, object]) -> None:
    while not traffic.stop.is_set():
        with traffic.lock:
            traffic.begun += 1
        try:
            wrong, replica = _stream(url, body)
        except (OSError, http.client.HTTPException) as error:
            wrong, replica = f"{type(error).__name__}: {error}", ""
        with traffic.lock:
            if wrong:
                traffic.broken.append(wrong)
            else:
                traffic.finished += 1
                traffic.replicas.add(replica)
        if wrong:
            time.sleep(0.2)


def _stream(url: str, body: dict[str, object]) -> tuple[str, str]:
    """(what went wrong, the replica that answered)."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        text = answer.read().decode()
    finally:
        connection.close()
    if answer.status != 200:
        return f"{answer.status} {text[:300]}", ""
    if not text.rstrip().endswith("data: [DONE]"):
        return f"cut: …{text[-300:]}", ""
    return "", answer.headers["x-roundhouse-replica"] or ""
