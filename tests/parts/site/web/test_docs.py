"""The docs in the product: readable signed out, true, and with examples that run."""

import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest

from cadenza.core.errors import CadenzaError
from cadenza.parts.site.docs.examples import BASE, EXAMPLES
from cadenza.parts.site.docs.pages import ERRORS
from tests.environment import environment
from tests.loopback import LoopbackUpstream
from tests.service import Service
from tests.visitor import Visitor

RUN_S = 120.0
END = "-- the end of an example --"
LINK = re.compile(r'href="#([^"]+)"')
ID = re.compile(r' id="([^"]+)"')
PAGE_BYTES_MAX = 100_000


def test_the_docs_are_open_to_everybody(stranger: Visitor) -> None:
    """A visitor without an account reads prices, limits, state, errors and the reference; no provider is named."""
    page = stranger.get("/docs")
    for text in ("$1.07", "usable", "10,000 at once", "insufficient_quota", "POST /v1/chat/completions", "Try it"):
        assert text in page.words, text
    for text in ("x-cadenza-grounding: none", "url_citation", "input_audio", "image_url", "file_data"):
        assert text in page.words, text
    assert '<section class="stack" id="grounding">' in page.text
    assert "loopback" not in page.text + stranger.api("GET", "/status").text


@pytest.mark.parametrize("path", ["/docs", "/docs/platform", "/docs/platform/operator"])
def test_every_link_of_a_page_leads_somewhere(stranger: Visitor, path: str) -> None:
    """Each link within the page has its target, no id is there twice, and the page is light."""
    text = stranger.get(path).text
    ids = ID.findall(text)
    assert set(LINK.findall(text)) <= set(ids)
    assert len(ids) == len(set(ids))
    assert len(text.encode()) < PAGE_BYTES_MAX


def test_the_address_is_that_of_the_visitor(stranger: Visitor, service: Service) -> None:
    """Examples carry the address by which the visitor came, escaped."""
    text = stranger.get("/docs").text
    assert BASE not in text
    assert f"curl -s http://127.0.0.1:{service.port}/v1/models" in unescape(text)
    hostile = stranger.get("/docs", {"host": 'x"><script>alert(1)</script>'})
    assert "<script>alert" not in hostile.text


def test_an_unknown_group_is_not_found(stranger: Visitor) -> None:
    """A group that the platform API does not have is 404; /status leads to the classes."""
    assert stranger.get("/docs/platform/no-such-group").status == 404
    assert stranger.get("/status").location == "/docs#classes"


def test_the_error_table_is_complete() -> None:
    """The table has every status and type of the errors of the API, and no others."""

    def kinds(base: type[CadenzaError]) -> set[tuple[int, str]]:
        own = {(base.status, base.type)} if base.__module__ == "cadenza.core.errors" else set()
        return own.union(*map(kinds, base.__subclasses__()))

    assert {(error.status, error.type) for error in ERRORS} == kinds(CadenzaError)


def test_the_status_says_what_a_class_costs(stranger: Visitor, service: Service) -> None:
    """The endpoint for everybody has the prices, the state and the limits."""
    service.reload()  # no route rests from an earlier test
    status = stranger.api("GET", "/status").json
    mezzo = status["classes"][0]
    assert (mezzo["id"], mezzo["state"]) == ("mezzo", "usable")
    assert (mezzo["input"], mezzo["output"], mezzo["cached_input"]) == ("0.10", "0.21", "0.02")
    assert status["limits"]["burst"] == 10_000


def run_example(service: Service, script: Path, text: str, *program: str) -> str:
    """What the example printed."""
    script.write_text(text.replace(BASE, f"http://127.0.0.1:{service.port}"))
    variables = environment(CADENZA_API_KEY=service.key, NO_PROXY="127.0.0.1")
    done = subprocess.run(
        [*program, str(script)], capture_output=True, text=True, timeout=RUN_S, env=variables, check=False
    )
    assert done.returncode == 0, done.stderr
    assert '"error"' not in done.stdout
    return done.stdout.strip()


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_run(service: Service, upstream: LoopbackUpstream, tmp_path: Path, name: str) -> None:
    """An example of curl prints what it asked for; one of Node is well-formed."""
    assert run_example(service, tmp_path / "example.sh", EXAMPLES[name].curl, "bash")
    run_example(service, tmp_path / "example.mjs", EXAMPLES[name].node, "node", "--check")


def test_python_examples_run(service: Service, upstream: LoopbackUpstream, tmp_path: Path) -> None:
    """Each example of Python prints what it asked for. They share a process, because the SDK takes long to import."""
    text = f'\nprint("{END}")\n'.join(example.python for example in EXAMPLES.values())
    printed = run_example(service, tmp_path / "examples.py", text, sys.executable).split(END)
    assert len(printed) == len(EXAMPLES)
    assert all(one.strip() for one in printed)
