"""Redis users for the agents of one namespace, which reach its keys and channels and nothing else."""

import re
from typing import Any

from roundhouse_kv.redis_link import RedisLink

_COMMANDS = ("+@all", "-@admin", "-@dangerous", "-@blocking", "-scan", "-randomkey", "-dbsize", "+info")
"""Everything that works on named keys. ``info`` is how a link hears of another server; ``scan`` would list all keys."""


class AclStore:
    """Both methods raise `RedisUnavailable`, also when our own user may not manage users."""

    def __init__(self, link: RedisLink, installation: str) -> None:
        self._link = link
        self._installation = installation

    async def allow(self, user: str, password: str, namespace: str) -> None:
        """Make the user, or make it anew: nothing of what it could do before remains."""
        pattern = f"rh:{_literal(self._installation)}:{{{_literal(namespace)}/*"
        rules = ("reset", "on", f">{password}", f"~{pattern}", f"&{pattern}", *_COMMANDS)
        await self._ask("SETUSER", user, *rules)

    async def remove(self, user: str) -> None:
        """Its connections end."""
        await self._ask("DELUSER", user)

    async def _ask(self, *words: str) -> None:
        client: Any = self._link.client
        await self._link.ask(client.execute_command("ACL", *words))


def _literal(text: str) -> str:
    return re.sub(r"([*?\[\]\\])", r"\\\1", text)
