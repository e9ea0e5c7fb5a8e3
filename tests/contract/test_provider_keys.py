"""A provider's key in a file: it can be rotated while the service runs, and is never shown."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.loopback import LoopbackUpstream, Pause, Sse, chunk, said
from tests.raw_client import RawClient, read_all, read_until
from tests.service import Service, wait_until
from tests.service_config import RouteSpec, ServiceSpec

OLD_KEY, NEW_KEY = "old-s3cret", "new-s3cret"
NOT_READ = "the config was not reloaded: it has mistakes"


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys") / "acme.key"


@pytest.fixture(scope="module")
def running(shared_upstream: LoopbackUpstream, key_file: Path) -> Iterator[Service]:
    key_file.write_text(OLD_KEY)
    provider = (
        f'kind = "openai"\nretention = "zero"\napi_key_file = "{key_file}"\nbase_url = "{shared_upstream.base_url}"'
    )
    with Service(ServiceSpec({}, {"forte": [RouteSpec("acme")]}, f"[providers.acme]\n{provider}\n")) as service:
        yield service


@pytest.fixture
def wire(running: Service, upstream: LoopbackUpstream, key_file: Path) -> RawClient:
    """A service that uses the old key."""
    key_file.write_text(OLD_KEY + "\n")
    running.reload()
    return RawClient(running.port, running.key)


def keys_sent(upstream: LoopbackUpstream) -> list[str]:
    return [request.headers["authorization"].removeprefix("Bearer ") for request in upstream.requests]


def test_key_file_is_read_again_at_a_reload(
    running: Service, wire: RawClient, upstream: LoopbackUpstream, key_file: Path
) -> None:
    """A changed file has no effect before a reload; the first request after it is sent with the new key."""
    assert wire.chat().status == 200
    key_file.write_text(NEW_KEY)
    assert wire.chat().status == 200
    running.reload()
    assert wire.chat().status == 200
    assert keys_sent(upstream) == [OLD_KEY, OLD_KEY, NEW_KEY]


def test_stream_outlives_the_rotation_of_its_key(
    running: Service, wire: RawClient, upstream: LoopbackUpstream, key_file: Path
) -> None:
    """A stream that began with the old key ends whole after the key was changed."""
    pause = Pause()
    upstream.script(Sse([said("half"), pause, said(" done"), chunk(finish="stop")]))
    with wire.open_chat(stream=True) as connection:
        begun = read_until(connection, b'"half"')
        key_file.write_text(NEW_KEY)
        running.reload()
        assert wire.chat().status == 200
        pause.release()
        assert b"[DONE]" in begun + read_all(connection)
    assert keys_sent(upstream) == [OLD_KEY, NEW_KEY]


@pytest.mark.parametrize("content", ["", f"{NEW_KEY}\r\nx-evil: 1"], ids=["empty", "two lines"])
def test_unusable_key_file_changes_nothing(
    running: Service, wire: RawClient, upstream: LoopbackUpstream, key_file: Path, content: str
) -> None:
    """A reload with an unusable key file is refused: the old key stays in use, and the log does not show a key."""
    before = running.output.count(NOT_READ)
    key_file.write_text(content)
    os.kill(running.pid, signal.SIGHUP)
    wait_until(lambda: running.output.count(NOT_READ) > before, "the problem in the log")
    assert wire.chat().status == 200
    assert keys_sent(upstream) == [OLD_KEY]
    assert "providers.acme.api_key_file" in running.output
    assert "s3cret" not in running.output
