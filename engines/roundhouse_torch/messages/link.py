"""Frames over a socket pair: length (u32, little endian), then msgpack. One end in each process."""

import asyncio
import select
import socket
from struct import Struct

import msgspec

from roundhouse_torch.messages.command import Command
from roundhouse_torch.messages.report import Report

_LENGTH = Struct("<I")
_CHUNK = 1 << 18
_encode = msgspec.msgpack.Encoder().encode


def _framed(message: Command | Report) -> bytes:
    data = _encode(message)
    return _LENGTH.pack(len(data)) + data


class EngineEnd:
    """The engine's end: blocking, with a time limit for reading. Raises `EOFError` when the server is gone."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        self._sock = sock
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._buffer = bytearray()
        self._decoder = msgspec.msgpack.Decoder(Command)

    def receive(self, timeout_s: float) -> list[Command]:
        """All commands that are there; waits for the first at most ``timeout_s``."""
        commands = self._decode()
        while self._poll.poll(0 if commands else timeout_s * 1000):
            chunk = self._sock.recv(_CHUNK)
            if not chunk:
                raise EOFError("the server closed the link")
            self._buffer += chunk
            commands += self._decode()
        return commands

    def send(self, report: Report) -> None:
        try:
            self._sock.sendall(_framed(report))
        except (BrokenPipeError, ConnectionResetError) as error:
            raise EOFError("the server closed the link") from error

    def _decode(self) -> list[Command]:
        commands: list[Command] = []
        start = 0
        while len(self._buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, start)
            if len(self._buffer) - start - _LENGTH.size < length:
                break
            start += _LENGTH.size
            commands.append(self._decoder.decode(self._buffer[start : start + length]))
            start += length
        del self._buffer[:start]
        return commands


class ServerEnd:
    """The server's end, for asyncio. Commands are small and few, so sending never waits."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = msgspec.msgpack.Decoder(Report)

    @classmethod
    async def open(cls, sock: socket.socket) -> "ServerEnd":
        return cls(*await asyncio.open_connection(sock=sock))

    async def receive(self) -> Report:
        """Raises `EOFError` when the engine is gone."""
        try:
            (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            return self._decoder.decode(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionResetError) as error:
            raise EOFError("the engine closed the link") from error

    def send(self, command: Command) -> None:
        self._writer.write(_framed(command))

    def close(self) -> None:
        self._writer.close()
