"""Forwards ports of this machine's loopback to addresses that only a cluster's network reaches.

usage: forward.py PID LISTEN=HOST:PORT...; says "ready" once it listens

The listening sockets are made first; then the process moves into the network namespace of PID. A socket stays in the
namespace that it was made in, so connections are accepted out here and opened in there.
"""

import asyncio
import ctypes
import os
import socket
import sys

CLONE_NEWNET = 0x40000000


def enter_network_of(pid: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    if libc.setns(namespace, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), f"cannot enter the network of process {pid}")
    os.close(namespace)


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:
        writer.close()


async def forward(listener: socket.socket, host: str, port: int) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection(host, port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(copy(reader, there[1]), copy(there[0], writer))
        there[1].close()
        writer.close()

    server = await asyncio.start_server(connected, sock=listener)
    await server.serve_forever()


async def main(pid: int, rules: list[str]) -> None:
    forwards = []
    for rule in rules:
        listen, _, target = rule.partition("=")
        host, _, port = target.rpartition(":")
        try:
            listener = socket.create_server(("127.0.0.1", int(listen)))
        except OSError as error:
            sys.exit(f"port {listen} of 127.0.0.1: {error.strerror}; choose another by PORT or API_PORT")
        forwards.append((listener, host, int(port)))
    enter_network_of(pid)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await asyncio.gather(*(forward(*f) for f in forwards))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2:]))
