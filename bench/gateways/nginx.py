"""nginx as a bare proxy: the lower bound for every gateway, because it neither parses nor changes a request."""

import shutil
import subprocess
from pathlib import Path

from bench.gateways.base import Launch
from bench.gateways.install import debian_program
from bench.workload import Target

CONFIG = """
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
worker_rlimit_nofile 65536;
events {{ worker_connections 16384; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  keepalive_requests 1000000000;
  upstream bench {{ server 127.0.0.1:{upstream_port}; keepalive 256; keepalive_requests 1000000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=8192;
    client_max_body_size 64m;
    client_body_buffer_size 1m;
    location / {{
      proxy_pass http://bench;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
    }}
  }}
}}
"""


class Nginx:
    """A bare proxy: no keys, no validation, no metering."""

    name = "nginx"

    def install(self) -> str:
        program = debian_program("nginx", "nginx-light")
        said = subprocess.run([program, "-v"], capture_output=True, text=True, check=False).stderr
        return said.rpartition("/")[2].split()[0]

    def prepare(self, folder: Path, port: int, upstream_port: int) -> Launch:
        config = folder / "nginx.conf"
        config.write_text(CONFIG.format(folder=folder, port=port, upstream_port=upstream_port))
        program = shutil.which("nginx") or "/usr/sbin/nginx"
        return Launch([program, "-p", folder, "-c", config, "-e", folder / "error.log"], Target(port))
