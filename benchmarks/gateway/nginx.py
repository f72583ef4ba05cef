"""nginx as the yardstick: one worker, keep-alive to the backends, no buffering, everything under one folder."""

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import CACHE, BenchmarkError

CONFIG = """\
worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
{user}
events {{ worker_connections 4096; }}
http {{
  access_log off;
  client_max_body_size 64m;
  client_body_buffer_size 1m;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  keepalive_requests 1000000000;
  upstream engines {{
    {servers}
    keepalive 256;
    keepalive_requests 1000000000;
  }}
  server {{
    listen 127.0.0.1:{port};
    location = /health {{ return 200; }}
    location / {{
      proxy_pass http://engines;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
    }}
  }}
}}
"""


def find_nginx() -> Path:
    """The system's nginx, else Debian's package unpacked into the cache: nothing is installed or started."""
    if found := shutil.which("nginx", path="/usr/sbin:/usr/bin:/sbin:/bin"):
        return Path(found)
    folder = CACHE / "nginx"
    program = folder / "usr" / "sbin" / "nginx"
    if not program.exists():
        _unpack(folder)
    return program


def nginx_version(program: Path) -> str:
    told = subprocess.run([program, "-v"], capture_output=True, text=True, check=True).stderr
    found = re.search(r"nginx/(\S+)", told)
    return found[1] if found else "unknown"


def write_config(folder: Path, port: int, backends: Sequence[int], *, root: bool) -> Path:
    """``root``: the worker keeps its rights, since it may not enter the folder with others'."""
    folder.mkdir(parents=True, exist_ok=True)
    servers = " ".join(f"server 127.0.0.1:{backend};" for backend in backends)
    config = folder / "nginx.conf"
    user = "user root;" if root else ""
    config.write_text(CONFIG.format(folder=folder, port=port, servers=servers, user=user))
    return config


def _unpack(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if subprocess.run(["apt-get", "download", "nginx"], cwd=folder, capture_output=True, check=False).returncode:
            subprocess.run(["apt-get", "update", "-qq"], capture_output=True, check=False)
            subprocess.run(["apt-get", "download", "nginx"], cwd=folder, capture_output=True, check=True)
        (package,) = folder.glob("nginx_*.deb")
        subprocess.run(["dpkg-deb", "-x", package, folder], check=True)
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        raise BenchmarkError(
            "nginx is the yardstick of this benchmark and cannot be fetched with apt; install it (Debian: "
            f"apt-get install nginx-light) and run again: {error}"
        ) from error
