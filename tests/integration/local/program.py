"""A container for tests: writes what happens to it into a file, serves HTTP if asked to. Standard library only.

Each event is one line ``<name> <event>`` in $EVENTS. Options: ``--port`` (serve on $POD_IP), ``--exit`` code (at once),
``--say`` (print a line first), ``--ready-file`` (answer 503 on /ready until the file is there), ``--ignore-term``,
``--term-takes`` seconds, ``--child`` (start a child in a session of its own).
"""

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

parser = argparse.ArgumentParser()
parser.add_argument("name")
parser.add_argument("--port", type=int)
parser.add_argument("--exit", type=int)
parser.add_argument("--say")
parser.add_argument("--last-words")
parser.add_argument("--ready-file")
parser.add_argument("--ignore-term", action="store_true")
parser.add_argument("--term-takes", type=float, default=0)
parser.add_argument("--child", action="store_true")
options = parser.parse_args()


def tell(event: str) -> None:
    with open(os.environ["EVENTS"], "a") as file:
        file.write(f"{options.name} {event}\n")


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        unready = self.path == "/ready" and options.ready_file and not Path(options.ready_file).exists()
        if not self.path.startswith(("/ready", "/live")):
            tell(f"GET {self.path}")
        if self.path.startswith("/hang"):
            time.sleep(600)
        self.send_response(503 if unready else 200)
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        pass


def on_term(*_: object) -> None:
    tell("term")
    if options.ignore_term:
        return
    time.sleep(options.term_takes)
    tell("end")
    os._exit(0)


signal.signal(signal.SIGTERM, on_term)
if options.child:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    tell(f"child {child.pid}")
if options.say:
    sys.stdout.write(options.say + "\n")
    sys.stdout.flush()
if options.last_words:
    words = Path(sys.argv[sys.argv.index("--last-words") + 1])
    words.write_text("last words")
tell(f"start {os.getpid()}")
if options.exit is not None:
    sys.exit(options.exit)
if options.port:
    server = ThreadingHTTPServer((os.environ["POD_IP"], options.port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
while True:  # A signal may reach another thread, which does not end a pause() of this one.
    time.sleep(0.02)
