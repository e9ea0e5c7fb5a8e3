"""What README.md shows is run: its make targets exist, and its curl lines and Python work on the built-in default."""

import re
import sys
from collections.abc import Iterator

import pytest

from tests.cli.curl import curl
from tests.cli.program import Server, run_program, serving
from tests.docs.markdown import README, ROOT, blocks, commands

PORT = ":8080/"
TARGETS = [line.split()[1] for line in commands(README, "make")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("readme")) as running:
        running.wait_for_model()
        yield running


def test_readme_shows_how_to_begin() -> None:
    """The page has a command to run the service, a request by curl and one by the SDK."""
    assert "run" in TARGETS
    assert commands(README, "curl")
    assert blocks(README, "python")


@pytest.mark.parametrize("target", TARGETS)
def test_make_target_exists(target: str) -> None:
    """What follows `make` is a target that `make help` explains."""
    assert re.search(rf"^{target}:.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("line", commands(README, "curl"))
def test_curl_line_works(server: Server, line: str) -> None:
    """A curl line is answered, and not by an error."""
    reply = curl(line.replace(PORT, f":{server.port}/"), CADENZA_API_KEY=server.key)
    assert '"object":' in reply
    assert '"error"' not in reply


@pytest.mark.parametrize("block", blocks(README, "python"))
def test_python_works(server: Server, block: str) -> None:
    """A Python block runs to its end and prints what the model said."""
    program = block.replace(PORT, f":{server.port}/")
    done = run_program([sys.executable, "-c", program], server.folder, CADENZA_API_KEY=server.key)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
