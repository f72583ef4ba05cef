"""An engine that records the bytes it gets and answers the bytes it was told."""

import socket
import threading
from contextlib import suppress


class RawEngine:
    """One thread; answers each request on a connection with ``answer``, then keeps the connection."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.answer = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
        self.requests: list[bytes] = []
        threading.Thread(target=self._accept, name="raw engine", daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as file, suppress(OSError):
            while line := file.readline():
                head = line
                while (line := file.readline()) not in (b"\r\n", b""):
                    head += line
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
                self.requests.append(head + b"\r\n" + file.read(length))
                connection.sendall(self.answer)
