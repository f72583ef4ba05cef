"""Watches by kopf: its event handlers turn changed objects into keys, and do nothing else. The only module with kopf.

kopf runs in a thread and an event loop of its own, because at its end it cancels every task of its loop. Only stateless
``on.event`` handlers are used: no finalizers, no annotations, no handler state in the objects. It does not report what
was deleted while a watch was broken; but it then lists anew, and tells of objects that were told of before as if they
were new, so that the operator can look after everything at once. It may go on without watching when a part of it has
failed, so the operator expects to hear of its own writes (in `OperatorCore`).
"""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any, cast

import kopf
import uvloop

from roundhouse_operator.cluster import ENGINE_REPLICA, INFERENCE_SERVICE, POD, Kind, Obj
from roundhouse_operator.errors import SourceEnded
from roundhouse_operator.names import GROUP, MANAGED_BY, OURS
from roundhouse_operator.settings import Settings
from roundhouse_operator.sources import labelled_key, own_key

END_TIMEOUT_S = 10.0
_IDENTITY = "roundhouse-operator"  # else kopf asks who the user is, and a container's user has no name
_KEYS: dict[Kind, Callable[[Obj], str | None]] = {
    INFERENCE_SERVICE: own_key,
    ENGINE_REPLICA: labelled_key,
    POD: labelled_key,
}


class KopfSource:
    """``run`` until cancelled; raises when kopf ends by itself. ``heard`` is when an object was last reported.

    ``on_gap``: a watch was broken, and what was deleted meanwhile will not be told.
    """

    def __init__(
        self,
        settings: Settings,
        on_key: Callable[[str], None],
        on_gap: Callable[[], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._on_key = on_key
        self._on_gap = on_gap
        self._known: set[str] = set()
        self._clock = clock
        self.heard = clock()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        stop = threading.Event()
        thread = threading.Thread(target=self._run_kopf, args=(loop, ended, stop), name="kopf", daemon=True)
        thread.start()
        try:
            await asyncio.shield(ended)
            raise SourceEnded("kopf ended by itself")
        finally:
            stop.set()
            await asyncio.to_thread(thread.join, END_TIMEOUT_S)

    def _run_kopf(self, loop: asyncio.AbstractEventLoop, ended: "asyncio.Future[None]", stop: threading.Event) -> None:
        error: BaseException | None = None
        try:
            uvloop.run(
                kopf.operator(
                    registry=self._registry(loop),
                    settings=_kopf_settings(self._settings),
                    clusterwide=not self._settings.namespaces,
                    namespaces=list(self._settings.namespaces),
                    standalone=True,
                    identity=cast(Any, _IDENTITY),
                    stop_flag=stop,
                )
            )
        except Exception as caught:
            error = caught
        loop.call_soon_threadsafe(_finish, ended, error)

    def _registry(self, loop: asyncio.AbstractEventLoop) -> Any:
        registry = kopf.OperatorRegistry()
        kopf.on.login(registry=registry, errors=kopf.ErrorsMode.TEMPORARY)(_log_in)
        for kind, key_of in _KEYS.items():
            labels = None if kind == INFERENCE_SERVICE else {MANAGED_BY: OURS[MANAGED_BY]}
            group, _, version = kind.api_version.rpartition("/")

            def handler(body: Any, type: str | None, key_of: Callable[[Obj], str | None] = key_of, **_: Any) -> None:
                loop.call_soon_threadsafe(self._heard, key_of(body), str(body["metadata"]["uid"]), type)

            kopf.on.event(group, version, kind.plural, labels=labels, registry=registry, id=f"{kind.plural}-changed")(
                _asynchronous(handler)
            )
        return registry

    def _heard(self, key: str | None, uid: str, change: str | None) -> None:
        """``change`` None: from a list."""
        self.heard = self._clock()
        if change is None and uid in self._known:
            self._on_gap()
        if change == "DELETED":
            self._known.discard(uid)
        else:
            self._known.add(uid)
        if key is not None:
            self._on_key(key)


class _NoDiffs(kopf.DiffBaseStorage):
    """Nothing compares an object with what it was; kopf would copy every object that it reports for that."""

    def build(self, *, body: Any, extra_fields: Any = None) -> Any:
        return {}

    def fetch(self, *, body: Any) -> Any:
        return None

    def store(self, *, body: Any, patch: Any, essence: Any) -> None:
        return


def _log_in(**kwargs: Any) -> Any:
    return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)


def _asynchronous(handler: Callable[..., None]) -> Callable[..., Any]:
    """kopf runs plain functions in threads, one more hop for nothing."""

    async def handle(**kwargs: Any) -> None:
        handler(**kwargs)

    return handle


def _kopf_settings(settings: Settings) -> Any:
    """Every option that would write, watch or wait for more than is needed is off."""
    found = kopf.OperatorSettings()
    found.posting.enabled = False
    found.peering.standalone = True
    found.persistence.finalizer = f"{GROUP}/unused"
    found.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=GROUP)
    found.persistence.diffbase_storage = _NoDiffs()
    found.scanning.disabled = True
    found.networking.request_timeout = settings.request_timeout_s
    found.networking.connect_timeout = 5
    found.watching.server_timeout = 300
    selector = f"{MANAGED_BY}={OURS[MANAGED_BY]}"
    for kind in (ENGINE_REPLICA, POD):
        group, _, version = kind.api_version.rpartition("/")
        found.watching.label_selectors[group, version, kind.plural] = selector
    return found


def _finish(ended: "asyncio.Future[None]", error: BaseException | None) -> None:
    if ended.done():
        return
    if error is None:
        ended.set_result(None)
    else:
        ended.set_exception(error)
