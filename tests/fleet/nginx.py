"""nginx in front of the gateways: round robin, kept connections, no buffering.

A POST is passed to the next gateway only if no connection was made; once sent, it is never sent again. No gateway is
set aside after a failure: nginx counts a lost reply as one, and with all of them set aside it would refuse everything.
"""

import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from tests.debian import find_or_install
from tests.fleet.ports import free_port
from tests.processes import children
from tests.service import END_S, wait_until

CONFIG = """
daemon off;
{user}
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
worker_rlimit_nofile 8192;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  upstream gateways {{ {servers} keepalive 64; }}
  server {{
    listen 127.0.0.1:{port} backlog=2048;
    client_max_body_size 32m;
    location / {{
      proxy_pass http://gateways;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header X-Forwarded-For $remote_addr;
      proxy_buffering off;
      proxy_connect_timeout 1s;
      proxy_read_timeout 120s;
      proxy_next_upstream error timeout;
    }}
  }}
}}
"""


class Nginx:
    """`with Nginx(ports) as nginx` serves on `nginx.port` until the block ends."""

    def __init__(self, ports: Sequence[int]) -> None:
        self.port = free_port()
        self._temporary = tempfile.TemporaryDirectory(prefix="cadenza-nginx-")
        self._folder = Path(self._temporary.name)
        self._write_config(ports)

    def __enter__(self) -> Self:
        program = find_or_install("nginx", "nginx-light")
        folder = str(self._folder)
        command = [program, "-p", folder, "-c", f"{folder}/nginx.conf", "-e", f"{folder}/error.log"]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        wait_until(lambda: bool(self._workers()), "nginx")
        return self

    def __exit__(self, *_exc: object) -> None:
        self._process.terminate()
        self._process.wait(END_S)
        self._temporary.cleanup()

    def use(self, ports: Sequence[int]) -> None:
        """Send new requests to these gateways only. Returns when the requests that began before have ended."""
        before = self._workers()
        self._write_config(ports)
        self._process.send_signal(signal.SIGHUP)
        wait_until(lambda: not before & self._workers() and bool(self._workers()), "the end of the old nginx workers")

    def _write_config(self, ports: Sequence[int]) -> None:
        servers = " ".join(f"server 127.0.0.1:{port} max_fails=0;" for port in ports)
        user = "user root;" if os.getuid() == 0 else ""
        config = CONFIG.format(folder=self._folder, port=self.port, servers=servers, user=user)
        (self._folder / "nginx.conf").write_text(config)

    def _workers(self) -> set[int]:
        return children(self._process.pid)
