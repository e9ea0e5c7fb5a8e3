"""14. /metrics: nobody reads it through a proxy on this machine, and a token opens it from elsewhere."""

import socket
from collections.abc import Iterator

import msgspec
import pytest

from tests.loopback import LoopbackUpstream
from tests.service import END_S, Service, ServiceProcess
from tests.service_config import classes_spec

TOKEN = "a-token-for-prometheus-only"
THROUGH_A_PROXY = ["forwarded", "x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "x-real-ip", "via"]
WITH_TOKEN = '[server]\nmetrics_token_env = "METRICS_TOKEN"\n'
DUAL_STACK = '[server]\nhost = "::ffff:127.0.0.1"\n'


def running(upstream: LoopbackUpstream, more_toml: str) -> Iterator[ServiceProcess]:
    with pytest.MonkeyPatch.context() as variables:
        variables.setenv("METRICS_TOKEN", TOKEN)
        with Service(msgspec.structs.replace(classes_spec(upstream.base_url), more_toml=more_toml)) as service:
            yield service.process


@pytest.fixture(scope="module")
def plain(shared_upstream: LoopbackUpstream) -> Iterator[ServiceProcess]:
    yield from running(shared_upstream, "")


@pytest.fixture(scope="module")
def with_token(shared_upstream: LoopbackUpstream) -> Iterator[ServiceProcess]:
    yield from running(shared_upstream, WITH_TOKEN)


@pytest.fixture(scope="module")
def dual_stack(shared_upstream: LoopbackUpstream) -> Iterator[ServiceProcess]:
    """A service whose clients have IPv4 addresses that are mapped into IPv6."""
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    yield from running(shared_upstream, DUAL_STACK)


def test_a_program_on_this_machine_reads_the_metrics(plain: ServiceProcess) -> None:
    """Without a token, Prometheus on this machine needs nothing."""
    assert plain.get("/metrics")[0] == 200


@pytest.mark.parametrize("name", THROUGH_A_PROXY)
def test_nobody_reads_the_metrics_through_a_proxy(plain: ServiceProcess, name: str) -> None:
    """A request that a proxy forwarded is refused, whatever the proxy says about it."""
    for value in ("", "127.0.0.1", "203.0.113.7", "for=127.0.0.1", "1.1 proxy"):
        status, body = plain.get("/metrics", {name: value})
        assert (status, "cadenza_" in body) == (403, False), value


def test_a_mapped_address_is_understood(dual_stack: ServiceProcess) -> None:
    """On a socket for IPv6 and IPv4, a program on this machine reads the metrics, and a proxy's clients do not."""
    assert dual_stack.get("/metrics")[0] == 200
    assert dual_stack.get("/metrics", {"x-forwarded-for": "203.0.113.7"})[0] == 403


@pytest.mark.parametrize("forwarded", [{}, {"x-forwarded-for": "203.0.113.7"}], ids=["here", "elsewhere"])
def test_the_token_opens_the_metrics(with_token: ServiceProcess, forwarded: dict[str, str]) -> None:
    """With a token configured it is needed always, and opens the metrics from everywhere."""
    given = {"authorization": f"Bearer {TOKEN}"}
    assert with_token.get("/metrics", forwarded | given)[0] == 200
    for wrong in ({}, {"authorization": f"Bearer {TOKEN[:-1]}"}, {"authorization": TOKEN}, {"x-api-key": TOKEN}):
        status, body = with_token.get("/metrics", forwarded | wrong)
        assert (status, "cadenza_" in body) == (401, False)


def test_the_token_opens_nothing_else(with_token: ServiceProcess) -> None:
    """The token is no key of the API, and no log line or page shows it."""
    assert with_token.get("/v1/models", {"authorization": f"Bearer {TOKEN}"})[0] == 401
    assert TOKEN not in with_token.output


def test_a_proxy_that_adds_nothing_is_stopped_by_the_token(with_token: ServiceProcess) -> None:
    """A proxy on this machine that only copies bytes looks like a local program: the token is what tells them apart."""
    with socket.create_connection(("127.0.0.1", with_token.port), END_S) as copied:
        copied.sendall(b"GET /metrics HTTP/1.1\r\nhost: cadenza.example\r\nconnection: close\r\n\r\n")
        assert copied.recv(65_536).startswith(b"HTTP/1.1 401 ")
