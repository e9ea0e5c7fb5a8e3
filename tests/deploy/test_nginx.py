"""A real nginx with our config in front of real services: streams, bodies, refusals, and gateways that are gone."""

import json
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from cadenza.http.connection import ConnectionLimits
from tests.debian import find_or_install
from tests.deploy.files import DEPLOY
from tests.deploy.nginx import Nginx, render, running_nginx
from tests.loopback import ROLE, STOP, LoopbackUpstream, Pause, Raw, Sse, said
from tests.loopback.replies import Close
from tests.raw_client import RawClient, read_until
from tests.service import Deployment, Service
from tests.service_config import ordinary_spec

MIB = 1024 * 1024
CHECK_S = 60.0
CONFIG = (DEPLOY / "nginx.conf").read_text()
TLS = (
    "listen 8443 ssl;",
    "ssl_certificate /etc/nginx/tls/fullchain.pem;",
    "ssl_certificate_key /etc/nginx/tls/privkey.pem;",
)


@pytest.fixture(scope="module")
def nginx(service: Service) -> Iterator[Nginx]:
    with running_nginx([service.port]) as running:
        yield running


@pytest.fixture
def api(nginx: Nginx, service: Service) -> RawClient:
    return RawClient(nginx.port, service.key)


@pytest.fixture(scope="module")
def dead_port() -> Iterator[int]:
    """A port where every connection is refused."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def port_of(upstream: LoopbackUpstream) -> int:
    return int(upstream.base_url.rpartition(":")[2].removesuffix("/v1"))


def check_config(config: Path) -> None:
    program = find_or_install("nginx", "nginx-light")
    done = subprocess.run(
        [program, "-t", "-q", "-c", config, "-e", "stderr"], capture_output=True, timeout=CHECK_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_nginx_accepts_the_config(tmp_path: Path) -> None:
    """`nginx -t` has nothing to say about the config."""
    check_config(render(tmp_path, 8080, [1, 2, 3]))


def test_nginx_accepts_the_lines_for_tls(tmp_path: Path) -> None:
    """With its TLS lines in use and a certificate the config is accepted too."""
    text = CONFIG
    for line in TLS:
        assert f"    # {line}\n" in text
        text = text.replace(f"    # {line}\n", f"    {line}\n")
    certificate = trustme.CA().issue_cert("cadenza.example")
    certificate.private_key_pem.write_to_path(str(tmp_path / "privkey.pem"))
    certificate.cert_chain_pems[0].write_to_path(str(tmp_path / "fullchain.pem"))
    check_config(render(tmp_path, 8080, [1], text.replace("/etc/nginx/tls/", "/tmp/")))


def test_a_stream_is_not_buffered(api: RawClient, upstream: LoopbackUpstream) -> None:
    """Each word of a stream passes through nginx before the upstream has sent the next one."""
    pauses = [Pause() for _ in range(3)]
    steps = [step for number, pause in enumerate(pauses) for step in (said(f"word{number} "), pause)]
    upstream.script(Sse([ROLE, *steps, STOP]))
    with api.open_chat(stream=True) as connection:
        for number, pause in enumerate(pauses):
            read_until(connection, f"word{number}".encode())
            pause.release()
        read_until(connection, b"data: [DONE]")


def test_a_client_that_leaves_closes_the_upstream(api: RawClient, upstream: LoopbackUpstream) -> None:
    """A client that disconnects from nginx has its upstream request closed."""
    upstream.script(Sse([ROLE, said("first word"), Pause()]))
    with api.open_chat(stream=True) as connection:
        read_until(connection, b"first word")
    upstream.wait_for_disconnect()


def test_prompts_are_not_written_to_disk(api: RawClient, nginx: Nginx, upstream: LoopbackUpstream) -> None:
    """While a large prompt and a large reply pass, nginx has no temporary file."""
    pause = Pause()
    upstream.script(Sse([ROLE, *[said("x" * 16_384)] * 64, pause, STOP]))
    body = json.dumps({"messages": [{"role": "user", "content": "word " * (MIB // 2)}], "stream": True}).encode()
    with api.connect() as connection:
        connection.sendall(api.chat_bytes(body))
        pause.wait_until_reached()
        assert nginx.open_temporary_files() == []
        pause.release()
        read_until(connection, b"data: [DONE]")


def test_a_large_body_is_refused_by_the_service(api: RawClient) -> None:
    """A body above 32 MiB gets the 413 of the API, not a page of nginx."""
    assert "32 MiB" in api.post(b"x" * (33 * MIB)).error(413)


def test_metrics_are_not_public(api: RawClient) -> None:
    """The metrics cannot be reached through nginx."""
    assert api.get("/metrics").status == 404
    assert api.get("/healthz").status == 200


def test_a_client_cannot_forge_its_address(nginx: Nginx) -> None:
    """A gateway gets the address of nginx's client alone, whatever the client says, and its Host."""
    with LoopbackUpstream() as gateway, running_nginx([port_of(gateway)]) as front:
        RawClient(front.port, "a-key").post(
            {"messages": []}, {"x-forwarded-for": "8.8.8.8", "x-forwarded-proto": "https"}
        )
        headers = gateway.requests[0].headers
    assert headers["x-forwarded-for"] == "127.0.0.1"
    assert headers["x-forwarded-proto"] == "http"
    assert headers["host"] == "127.0.0.1"


def test_a_dead_gateway_is_passed_over(service: Service, dead_port: int, upstream: LoopbackUpstream) -> None:
    """While one gateway of two refuses connections, every request is answered by the other."""
    with running_nginx([dead_port, service.port]) as front:
        replies = [RawClient(front.port, service.key).chat() for _ in range(8)]
    assert [reply.status for reply in replies] == [200] * 8


def test_no_gateway_is_an_error_object(dead_port: int) -> None:
    """If no gateway answers, the reply of nginx is an error object that says when to come back."""
    with running_nginx([dead_port]) as front:
        reply = RawClient(front.port, "a-key").chat()
    assert reply.error(502, "api_error") == "No gateway answered. Try again."
    assert reply.headers["retry-after"] == "1"


def test_a_request_is_never_sent_twice() -> None:
    """A gateway that dies after it got a request leaves the client with an error; no other gateway gets the request."""
    with LoopbackUpstream() as first, LoopbackUpstream() as second:
        for gateway in (first, second):
            gateway.always(Raw([Close()]))
        with running_nginx([port_of(first), port_of(second)]) as front:
            RawClient(front.port, "a-key").chat().error(502, "api_error")
        assert len(first.requests) + len(second.requests) == 1


def test_a_gateway_is_restarted_without_a_failed_request(upstream: LoopbackUpstream) -> None:
    """A gateway that is taken out of nginx first finishes its stream and stops, and every other request is served."""
    pause = Pause()
    upstream.script(Sse([ROLE, said("first word"), pause, STOP]))
    with Deployment(ordinary_spec(upstream.base_url)) as deployment:
        gateways = deployment.start_many(2)
        with running_nginx([gateway.port for gateway in gateways]) as front:
            api = RawClient(front.port, deployment.key)
            with api.open_chat(stream=True) as connection:
                read_until(connection, b"first word")
                (busy,) = (gateway for gateway in gateways if gateway.metric("cadenza_slots_taken"))
                front.take_out(busy.port)
                busy.send_signal(signal.SIGTERM)
                statuses = [api.chat().status for _ in range(10)]
                pause.release()
                read_until(connection, b"data: [DONE]")
            assert busy.wait_until_ended() == 0
            statuses += [api.chat().status for _ in range(10)]
    assert statuses == [200] * 20


def test_nginx_closes_idle_connections_first() -> None:
    """nginx keeps an idle connection for less time than a gateway does, so that no request meets a closed one."""
    assert "    keepalive_timeout 30s;\n" in CONFIG.partition("upstream gateways")[2].partition("}")[0]
    assert ConnectionLimits().keep_alive_s > 30
