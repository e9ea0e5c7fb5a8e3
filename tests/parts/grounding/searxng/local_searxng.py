"""Starts SearXNG with settings of the test's, and an index that SearXNG asks as if it were an engine on the web."""

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.debian import CannotInstall, skip_or_fail
from tests.installed import searxng_environment

PROGRAM = Path(__file__).parent / "program.py"
END_S = 100.0

# Without `use_default_settings` SearXNG has no other engines and no plugins: nothing of it reaches for the network.
SETTINGS = """
search:
  formats: [{formats}]
server:
  secret_key: "secret of the tests"
  limiter: false
engines:
  - name: index of the test
    engine: json_engine
    shortcut: it
    categories: [general]
    search_url: {index_url}/find?words={{query}}
    enable_http: true
    timeout: 20.0
    results_query: found
    url_query: address
    title_query: name
    content_query: summary
doi_resolvers: {{example: "http://127.0.0.1:9/"}}
default_doi_resolver: example
"""


class Index:
    """Answers SearXNG with the results that a test gives, and records the words that it was asked for."""

    def __init__(self) -> None:
        self.results = list[dict[str, str]]()
        self.asked = list[str]()
        index = self

        class _Answering(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                index.asked += parse_qs(urlsplit(self.path).query)["words"]
                body = json.dumps({"found": index.results}).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 the name that http.server has
                """Nothing: the output of tests is read by people."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _Answering)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"


@contextlib.contextmanager
def running_index() -> Iterator[Index]:
    index = Index()
    thread = threading.Thread(target=index.server.serve_forever, name="index", daemon=True)
    thread.start()
    try:
        yield index
    finally:
        index.server.shutdown()
        index.server.server_close()
        thread.join(END_S)


@contextlib.contextmanager
def running_searxng(folder: Path, index_url: str, *formats: str) -> Iterator[str]:
    """The address of a SearXNG that allows these formats. All its files are in the folder."""
    try:
        python = searxng_environment() / "python"
    except CannotInstall as reason:
        skip_or_fail(f"SearXNG is not tested: {reason}")
    settings = folder / "settings.yml"
    settings.write_text(SETTINGS.format(formats=", ".join(formats), index_url=index_url))
    environment = {
        "PATH": os.environ["PATH"],
        "SEARXNG_SETTINGS_PATH": str(settings),
        "TMPDIR": str(folder),  # SearXNG keeps its caches there
    }
    with (folder / "log").open("w+") as log:
        command = [str(python), str(PROGRAM)]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True) as process:
            try:
                assert process.stdout
                port = process.stdout.readline().strip()
                assert port, f"SearXNG did not start: {_last_lines(log.name)}"
                yield f"http://127.0.0.1:{port}"
            finally:
                process.terminate()
                process.wait(END_S)
        sys.stderr.write(_last_lines(log.name))  # shown if the test fails


def _last_lines(path: str) -> str:
    return "\n".join(Path(path).read_text().splitlines()[-20:])
