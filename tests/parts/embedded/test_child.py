"""The model's process, driven as its parent does: it serves only requests with its key."""

import http.client
import subprocess
import sys
from collections.abc import Iterator
from urllib.parse import urlsplit

import msgspec
import pytest

from cadenza.parts.embedded import Ready, Start
from cadenza.parts.embedded.kind import bundled_model
from tests.environment import environment

ANSWER_S = 120.0
KEY = "the-key-of-the-parent"
CHAT = '{"messages": [{"role": "user", "content": "Hi."}], "max_tokens": 1}'


class Child:
    """A running child and its address."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        assert process.stdin
        assert process.stdout
        process.stdin.write(msgspec.json.encode(Start(str(bundled_model()), KEY, 1, 512, 16, 1)) + b"\n")
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
        [sys.executable, "-m", "cadenza.parts.embedded.child"],
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
    """Other machines cannot reach the model's server."""
    assert child.address.hostname == "127.0.0.1"


@pytest.mark.parametrize(("key", "status"), [(None, 401), ("another", 401), (KEY, 200)])
def test_serves_only_requests_with_its_key(child: Child, key: str | None, status: int) -> None:
    """A request without the key, or with another one, is refused."""
    assert child.status("POST", "/v1/chat/completions", key) == status


def test_does_not_show_prompts(child: Child) -> None:
    """The endpoint that shows the prompts of running requests is off, even for the parent."""
    assert child.status("GET", "/slots", KEY) in {404, 501}
