"""A server that speaks SearXNG's protocol and gives one answer to every search."""

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator
from urllib.parse import parse_qs

RESULTS = [{"url": "https://a.example/1", "title": "One", "content": "The first snippet."}]
ANSWER = (200, "application/json", json.dumps({"query": "q", "results": RESULTS}).encode())


class ScriptedSearxng(http.server.ThreadingHTTPServer):
    """Answers every search in the same way, or not before the end. `queries` has what it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Searches)
        self.answer: tuple[int, str, bytes] | None = None
        self.queries: list[str] = []
        self.ended = threading.Event()

    @property
    def toml(self) -> str:
        return f'[grounding.search]\nengine = "searxng"\nurl = "http://127.0.0.1:{self.server_port}"\n'


class Searches(http.server.BaseHTTPRequestHandler):
    """One connection to the engine."""

    def do_POST(self) -> None:
        engine = self.server
        assert isinstance(engine, ScriptedSearxng)
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        engine.queries += parse_qs(body)["q"]
        if engine.answer is None:
            engine.ended.wait()
        if engine.answer is None:
            return
        status, content_type, answer = engine.answer
        self.send_response(status)
        self.send_header("content-type", content_type)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Not printed."""


@contextlib.contextmanager
def running_searxng() -> Iterator[ScriptedSearxng]:
    with ScriptedSearxng() as engine:
        thread = threading.Thread(target=engine.serve_forever)
        thread.start()
        try:
            yield engine
        finally:
            engine.ended.set()
            engine.shutdown()
            thread.join()
