"""A search engine that fails: the part is left out and counted, the reply comes, and nothing else is charged."""

import http.server
import threading
from collections.abc import Iterator

import pytest

from tests.loopback import LoopbackUpstream
from tests.raw_client import RawClient
from tests.service import Service
from tests.service_config import RouteSpec, ServiceSpec

QUESTION = [{"role": "user", "content": "Search the web: who won the race yesterday?"}]
FAULTS = {
    "nothing at all": None,
    "a server error": (500, "text/plain", b"sorry"),
    "a web page": (200, "text/html", b"<html>Sign in</html>"),
    "broken JSON": (200, "application/json", b'{"results": ['),
}


class Engine(http.server.ThreadingHTTPServer):
    """Answers every search in the same way, or not at all until the end."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Searches)
        self.answer: tuple[int, str, bytes] | None = None
        self.ended = threading.Event()


class Searches(http.server.BaseHTTPRequestHandler):
    """One connection to the engine."""

    def do_POST(self) -> None:
        engine = self.server
        assert isinstance(engine, Engine)
        if engine.answer is None:
            engine.ended.wait()
            return
        status, content_type, body = engine.answer
        self.send_response(status)
        self.send_header("content-type", content_type)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Not printed."""


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine() as engine:
        thread = threading.Thread(target=engine.serve_forever)
        thread.start()
        yield engine
        engine.ended.set()
        engine.shutdown()
        thread.join()


@pytest.fixture
def service(engine: Engine, shared_upstream: LoopbackUpstream) -> Iterator[Service]:
    search = f'[grounding.search]\nengine = "searxng"\nurl = "http://127.0.0.1:{engine.server_port}"\ntimeout_s = 1\n'
    routes = {"forte": [RouteSpec("loopback")]}
    with Service(ServiceSpec({"loopback": shared_upstream.base_url}, routes, search)) as service:
        yield service


def test_a_failing_engine_is_left_out(service: Service, engine: Engine, upstream: LoopbackUpstream) -> None:
    """Whatever the engine does, the reply comes without sources, and the model gets the question as it was."""
    api = RawClient(service.port, service.key)
    for stream, answer in enumerate(FAULTS.values()):
        engine.answer = answer
        reply = api.chat(messages=QUESTION, stream=bool(stream % 2))
        assert (reply.status, reply.is_done) == (200, True)
        assert "x-cadenza-grounding" not in reply.headers
        assert upstream.requests[-1].json["messages"][-1] == QUESTION[0]
    failed, late = (
        service.process.metric(rf'cadenza_grounding_total{{part="search",result="{result}"}}')
        if f'result="{result}"' in service.process.get("/metrics")[1]
        else 0
        for result in ("failed", "late")
    )
    assert failed + late == len(FAULTS)
    assert "race" not in service.output
