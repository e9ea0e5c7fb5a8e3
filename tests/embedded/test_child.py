"""The process in which the model runs, spoken to as its parent does: it serves its key alone."""

import http.client
import subprocess
import sys
from collections.abc import Iterator
from urllib.parse import urlsplit

import msgspec
import pytest

from cadenza.upstreams.embedded.messages import Order, Ready
from cadenza.upstreams.embedded.upstream import bundled_model
from tests.service import environment

ANSWER_S = 30.0
KEY = "the-key-of-the-parent"
CHAT = '{"messages": [{"role": "user", "content": "Hi."}], "max_tokens": 1}'


class Child:
    """A running child, and where it listens."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        assert process.stdin
        assert process.stdout
        process.stdin.write(msgspec.json.encode(Order(str(bundled_model()), KEY, 1, 512, 2)) + b"\n")
        process.stdin.flush()
        self.address = urlsplit(msgspec.json.decode(process.stdout.readline(), type=Ready).url)

    def status(self, method: str, path: str, key: str | None) -> int:
        connection = http.client.HTTPConnection(self.address.netloc, timeout=ANSWER_S)
        headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
        try:
            connection.request(method, path, CHAT if method == "POST" else None, headers)
            return connection.getresponse().status
        finally:
            connection.close()


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    with subprocess.Popen(
        [sys.executable, "-m", "cadenza.upstreams.embedded.child"],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            yield Child(process)
        finally:
            process.kill()


def test_listens_on_the_loopback_only(child: Child) -> None:
    """No other machine can reach the model's own server."""
    assert child.address.hostname == "127.0.0.1"


@pytest.mark.parametrize(("key", "status"), [(None, 401), ("another", 401), (KEY, 200)])
def test_serves_its_key_alone(child: Child, key: str | None, status: int) -> None:
    """Whoever on this machine does not have the key is refused."""
    assert child.status("POST", "/v1/chat/completions", key) == status


def test_does_not_show_what_its_slots_hold(child: Child) -> None:
    """The endpoint that shows the prompts of running requests is off, for the parent as well."""
    assert child.status("GET", "/slots", KEY) in {404, 501}
