"""What agents log in to Redis with: one Secret per namespace, and, where asked for, a user of Redis behind it.

Without users of their own all agents have the installation's one password. With them each namespace's agents reach that
namespace's keys alone. A user is made again whenever another Redis may have lost it. Its password is what the Secret
says; a Secret that was lost gets the same one again, because pods that run keep theirs.
"""

import asyncio
import hashlib
import hmac
import logging
import secrets
from base64 import b64decode
from collections import defaultdict
from collections.abc import Iterable
from typing import Protocol

from roundhouse_kv.errors import RedisUnavailable

from roundhouse_operator.cluster import SECRET, Cluster, Conflict, Obj, find
from roundhouse_operator.names import REDIS_SECRET, agent_user
from roundhouse_operator.render import render_redis_secret
from roundhouse_operator.settings import Settings

log = logging.getLogger(__name__)


class Users(Protocol):
    """`roundhouse_kv.acl_store.AclStore`, as far as it is used here."""

    async def allow(self, user: str, password: str, namespace: str) -> None: ...

    async def remove(self, user: str) -> None: ...


class Access:
    """``grant`` does its work once per namespace, until `forget` says that somebody may have changed something."""

    def __init__(self, cluster: Cluster, users: Users, settings: Settings) -> None:
        self._cluster = cluster
        self._users = users
        self._settings = settings
        self._granted: set[str] = set()
        self._waiting: set[str] = set()
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def forget(self) -> None:
        self._granted.clear()

    def waits(self, namespace: str) -> bool:
        """Its user could not be made yet."""
        return namespace in self._waiting

    async def grant(self, namespace: str) -> str:
        """Returns what is in the way, nothing when all is well. Raises `ClusterError` for anything but a conflict."""
        if not self._settings.agents_log_in:
            return ""
        async with self._locks[namespace]:  # two services of one namespace must not make two passwords
            return "" if namespace in self._granted else await self._grant(namespace)

    async def _grant(self, namespace: str) -> str:
        settings = self._settings
        there = await find(self._cluster, SECRET, namespace, REDIS_SECRET)
        username, password = settings.redis_username, settings.redis_password
        if settings.redis_acl:
            username = agent_user(settings.installation, namespace)
            password = _known_password(there, username) or _derived_password(settings.redis_password, username)
        wanted = render_redis_secret(namespace, username, password)
        if there is None or there.get("data") != wanted["data"]:
            try:
                await self._cluster.apply(SECRET, wanted)
            except Conflict as error:
                log.warning("apply_conflict", extra={"kind": "Secret", "namespace": namespace, "error": str(error)})
                return f"Secret {REDIS_SECRET}: {error}"
        if await self._allowed(username, password, namespace):
            self._granted.add(namespace)
        return ""

    async def withdraw(self, namespace: str, others: Iterable[str]) -> None:
        """``others``: keys of services that remain; the last one of a namespace takes its Secret along."""
        if not self._settings.agents_log_in or any(key.startswith(f"{namespace}/") for key in others):
            return
        async with self._locks[namespace]:
            self._granted.discard(namespace)
            self._waiting.discard(namespace)
            await self._cluster.delete(SECRET, namespace, REDIS_SECRET)
            if self._settings.redis_acl:
                await self._remove(agent_user(self._settings.installation, namespace))

    async def _remove(self, user: str) -> None:
        try:
            await self._users.remove(user)
        except RedisUnavailable as error:
            log.warning("redis_user_not_removed", extra={"user": user, "error": str(error)})

    async def _allowed(self, username: str, password: str, namespace: str) -> bool:
        """Without Redis pods start all the same; the user is made as soon as it answers."""
        if not self._settings.redis_acl:
            return True
        self._waiting.add(namespace)
        try:
            await self._users.allow(username, password, namespace)
        except RedisUnavailable as error:
            log.warning("redis_user_not_made", extra={"namespace": namespace, "error": str(error)})
            return False
        self._waiting.discard(namespace)
        return True


def _derived_password(ours: str, username: str) -> str:
    """From the installation's own password, of which it tells nothing."""
    if not ours:
        return secrets.token_urlsafe(32)
    return hmac.new(ours.encode(), username.encode(), hashlib.sha256).hexdigest()


def _known_password(secret: Obj | None, username: str) -> str:
    """Empty when the Secret is not this user's."""
    try:
        data = (secret or {})["data"]
        return b64decode(data["password"]).decode() if b64decode(data["username"]).decode() == username else ""
    except (KeyError, TypeError, ValueError):
        return ""
