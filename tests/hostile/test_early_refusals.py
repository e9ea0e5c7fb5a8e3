"""A refusal that is sent while the client still sends its body: it arrives, and costs a bounded amount."""

import collections
import contextlib
import http.client
import itertools
import json
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.debian import find_or_install
from tests.service import Service, wait_until

MIB = 2**20
TIMEOUT_S = 100.0
CHAT = "/v1/chat/completions"
REFUSED_PATHS = ("/v1/nothing", "/api/chat", "/v1beta/models/x", "/openai/deployments/forte/chat/completions")
SIZES = (4 * MIB, 30 * MIB)
TOO_LARGE = (33 * MIB, 48 * MIB)
STATUSES = (401, 403, 404, 413, 415, 429)
NGINX_REQUESTS = 20
ENDLESS_CONNECTIONS = 16
NGINX_SOCKET = "nginx.sock"
NGINX = """
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{
    listen unix:{folder}/{socket};
    client_max_body_size 64m;
    location / {{
      proxy_pass http://127.0.0.1:{upstream_port};
      proxy_http_version 1.0;
      proxy_request_buffering off;
    }}
  }}
}}
"""


@pytest.fixture(scope="module")
def keys(service: Service) -> dict[int, str]:
    """A key for each status that the key decides."""
    slow = service.create_key(requests_per_second=0.001, burst=1)
    head = {"authorization": f"Bearer {slow}"}
    request = urllib.request.Request(f"{service.base_url}/models", headers=head)
    urllib.request.urlopen(request, timeout=TIMEOUT_S).close()  # takes the only request of its burst
    return {403: service.create_key(scopes=("models",)), 429: slow}


def refused_request(service: Service, keys: dict[int, str], status: int, size_bytes: int) -> urllib.request.Request:
    headers = {"content-type": "application/json"}
    if status != 401:
        headers["authorization"] = f"Bearer {keys.get(status, service.key)}"
    if status == 415:
        headers["content-encoding"] = "gzip"
    path = "/v1/nothing" if status == 404 else CHAT
    url = f"http://127.0.0.1:{service.port}{path}"
    return urllib.request.Request(url, b"x" * size_bytes, headers)


def outcome(request: urllib.request.Request) -> tuple[int, list[str]]:
    """The status and the fields of the reply; 0 and the error where none arrived."""
    try:
        urllib.request.urlopen(request, timeout=TIMEOUT_S).close()
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, list(json.load(refusal))
    except OSError as error:
        return 0, [str(error)]
    raise AssertionError("it was not refused")


@pytest.mark.parametrize("status", STATUSES)
def test_a_refusal_reaches_urllib(service: Service, keys: dict[int, str], status: int) -> None:
    """Large requests that are refused early get the reply, and not the end of the connection."""
    sizes = TOO_LARGE if status == 413 else SIZES
    got = [outcome(refused_request(service, keys, status, size_bytes)) for size_bytes in sizes]
    assert got == [(status, ["error"])] * len(sizes)


@pytest.mark.parametrize("size_bytes", [MIB // 2, 30 * MIB])
def test_a_refusal_reaches_a_client_that_keeps_its_connection(service: Service, size_bytes: int) -> None:
    """Where the rest of the body is small the connection is kept; where it is large the reply says that it closes."""
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=TIMEOUT_S)
    with contextlib.closing(connection):
        for _ in range(2):
            connection.request("POST", CHAT, b"x" * size_bytes)
            response = connection.getresponse()
            assert response.status == 401
            assert set(json.load(response)) == {"error"}
            assert (response.getheader("connection") == "close") is (size_bytes > MIB)


@pytest.fixture(scope="module")
def nginx(service: Service) -> Iterator[Path]:
    """The socket of an nginx that passes requests on to the service in HTTP/1.0. A port could be taken by others."""
    program = find_or_install("nginx", "nginx-light")
    with tempfile.TemporaryDirectory(prefix="cadenza-nginx-") as folder:
        config, path = Path(folder) / "nginx.conf", Path(folder) / NGINX_SOCKET
        config.write_text(NGINX.format(folder=folder, socket=NGINX_SOCKET, upstream_port=service.port))
        running = subprocess.Popen([program, "-p", folder, "-c", config, "-e", f"{folder}/error.log"])
        try:
            wait_until(lambda: listens(path), "nginx listening")
            yield path
        finally:
            running.terminate()
            running.wait(TIMEOUT_S)


def listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as one:
        return one.connect_ex(str(path)) == 0


class UnixConnection(http.client.HTTPConnection):
    """HTTP on a unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("127.0.0.1", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(str(self._path))


def test_a_refusal_passes_through_nginx(nginx: Path) -> None:
    """20 of 20 large requests without a key get 401 through a proxy that speaks HTTP/1.0, and none a 502."""
    statuses = list[int]()
    for number in range(NGINX_REQUESTS):
        connection = UnixConnection(nginx)
        with contextlib.closing(connection):
            connection.request("POST", CHAT, b"x" * (4 + number % 5) * MIB)
            statuses.append(connection.getresponse().status)
    assert collections.Counter(statuses) == {401: NGINX_REQUESTS}


def test_a_client_that_never_stops_sending_is_cut(service: Service) -> None:
    """Refused clients that go on sending are cut after a bounded number of bytes, and take no memory."""
    head = "POST {} HTTP/1.1\r\nhost: h\r\ncontent-length: 99999999999\r\n\r\n"
    before_bytes = service.process.rss_bytes
    with contextlib.ExitStack() as opened:
        sockets = [
            opened.enter_context(socket.create_connection(("127.0.0.1", service.port), TIMEOUT_S))
            for _ in range(ENDLESS_CONNECTIONS)
        ]
        for one, path in zip(sockets, itertools.cycle(REFUSED_PATHS), strict=False):
            one.sendall(head.format(path).encode())
        sent_bytes = [send_until_cut(one) for one in sockets]
        grown_bytes = service.process.rss_bytes - before_bytes
    print(f"cut after {max(sent_bytes) / MIB:.0f} MiB at most; RSS +{grown_bytes / MIB:.0f} MiB")  # noqa: T201
    assert max(sent_bytes) < 128 * MIB
    assert grown_bytes < 32 * MIB


def send_until_cut(one: socket.socket) -> int:
    sent_bytes, until_s = 0, time.monotonic() + TIMEOUT_S
    with contextlib.suppress(ConnectionError):
        while time.monotonic() < until_s and sent_bytes < 512 * MIB:
            sent_bytes += one.send(b"x" * MIB)
    return sent_bytes
