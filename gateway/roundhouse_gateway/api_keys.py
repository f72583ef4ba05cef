"""API keys of clients: who may use /v1, by hashes that a folder holds (contracts §9).

Each file of the folder is one client's: its name says whose, each line is ``sha256:<hex>`` of a key. A mounted Secret
is such a folder; what is changed in it counts within seconds. The keys themselves are nowhere but with the clients:
32 random bytes each, so that a plain hash can be neither guessed nor turned around. What cannot be read admits nobody.

A key is taken off a request's head before the head is forwarded: engines never see one.
"""

import asyncio
import hashlib
import hmac
import logging
import re
from pathlib import Path
from typing import Final

from roundhouse_gateway.client_request import ClientHead
from roundhouse_gateway.errors import ApiError, BadSettings

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0
LONGEST_FILE: Final = 64 << 10

_HASH: Final = re.compile(rb"sha256:([0-9a-f]{64})")
_AUTHORIZATION: Final = re.compile(rb"^authorization: ([^\r]*)\r\n", re.IGNORECASE | re.MULTILINE)
_BEARER: Final = re.compile(rb"bearer +([!-~]+) *", re.IGNORECASE)

_Stamp = tuple[tuple[str, int, int, int], ...]


class ApiKeys:
    """Raises `BadSettings` when the folder cannot be read at first; later it keeps what it last read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names: dict[bytes, tuple[bytes, str]] = {}
        """By the hash's first half, so that only the comparison of whole hashes decides, in constant time."""
        self._stamp: _Stamp | None = None
        try:
            self._load()
        except OSError as error:
            raise BadSettings(f"--api-keys {folder}: {error.strerror or error}") from error

    async def run(self) -> None:
        """Follow the folder until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await asyncio.to_thread(self._load)
            except OSError as error:
                log.warning("api_keys_unreadable folder=%s error=%s", self._folder, error.strerror)

    def admit(self, head: ClientHead) -> str:
        """The name of the client that sent this head; raises `ApiError` 401."""
        if head.api_key is None:
            take_key(head)
        if not head.api_key:
            raise _refusal("No API key was given: send it as 'Authorization: Bearer <key>'.")
        digest = hashlib.sha256(head.api_key).digest()
        known = self._names.get(digest[:16])
        if known is None or not hmac.compare_digest(known[0], digest):
            raise _refusal("The API key is not valid.")
        return known[1]

    def _load(self) -> None:
        files = sorted(path for path in self._folder.iterdir() if not path.name.startswith(".") and path.is_file())
        stats = [(path.name, path.stat()) for path in files]
        stamp = tuple((name, stat.st_mtime_ns, stat.st_size, stat.st_ino) for name, stat in stats)
        if stamp == self._stamp:
            return
        names: dict[bytes, tuple[bytes, str]] = {}
        for path in files:
            for digest in _hashes(path):
                names[digest[:16]] = (digest, path.name)
        self._names, self._stamp = names, stamp
        log.info("api_keys_loaded clients=%d keys=%d", len(files), len(names))


def hash_line(key: bytes) -> str:
    """What a file of the folder says of this key."""
    return "sha256:" + hashlib.sha256(key).hexdigest()


def take_key(head: ClientHead) -> None:
    """Moves the key out of the lines to forward; two of them are as good as none."""
    found = _AUTHORIZATION.findall(head.lines)
    bearer = _BEARER.fullmatch(found[0]) if len(found) == 1 else None
    head.api_key = bearer[1] if bearer else b""
    head.lines = _AUTHORIZATION.sub(b"", head.lines)


def _hashes(path: Path) -> list[bytes]:
    """Raises `OSError`. A line that is no hash is told by its number, never by what it says: it may be a key."""
    with path.open("rb") as file:
        lines = file.read(LONGEST_FILE).split(b"\n")
    found = []
    for number, line in enumerate(lines, 1):
        match = _HASH.fullmatch(line.strip())
        if match:
            found.append(bytes.fromhex(match[1].decode()))
        elif line.strip() and not line.startswith(b"#"):
            log.warning("api_key_no_hash file=%s line=%d (expected sha256:<64 hex digits>)", path.name, number)
    return found


def _refusal(message: str) -> ApiError:
    return ApiError(401, "invalid_api_key", message)
