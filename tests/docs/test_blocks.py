"""Every block of every page works as pasted."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from cadenza.config import load_settings
from tests.cli.program import Server, serving
from tests.docs.markdown import CLIENTS, PAGES, README, Block, blocks
from tests.docs.paste import Terminal

TESTED = {"bash", "python", "javascript", "toml", "json", "yaml"}
NOT_TESTED = {"text"}  # output and diagrams: there is nothing to run
PAGES_TO_RUN = sorted(
    (page for page in PAGES if page != CLIENTS and blocks(page, "bash", "python")),
    key=lambda page: "cadenza memory add" in page.read_text(),  # last: a note is part of every later prompt
)
LONG_PAGES = {"evaluation.md", "grounding.md"}
IS_SLOW = pytest.mark.slow(reason="the model answers many times")
IS_LONG = pytest.mark.release(reason="the model computes for 10 to 20 seconds")


def all_blocks(language: str) -> list[Block]:
    return [block for page in PAGES for block in blocks(page, language)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The built-in default, as `make run` starts it."""
    with serving(tmp_path_factory.mktemp("docs")) as running:
        running.wait_for_model()
        yield running


def test_every_block_is_tested() -> None:
    """A block has a language that is tested here, or one that is listed as not tested."""
    unknown = [block.place for page in PAGES for block in blocks(page) if block.language not in TESTED | NOT_TESTED]
    assert unknown == []


def test_readme_has_the_first_steps() -> None:
    """The README has the command that starts the service, a curl line and a Python example."""
    shell = "\n".join(block.text for block in blocks(README, "bash"))
    assert re.search(r"^make run$", shell, re.MULTILINE)
    assert re.search(r"^curl ", shell, re.MULTILINE)
    assert blocks(README, "python")


@pytest.mark.timeout(600)  # the embedded model answers several times, perhaps on a busy machine
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=page.name, marks=IS_LONG if page.name in LONG_PAGES else IS_SLOW) for page in PAGES_TO_RUN],
)
def test_commands_and_programs_run(server: Server, tmp_path: Path, page: Path) -> None:
    """The bash and Python blocks of a page, pasted one after the other, succeed and get no error object."""
    terminal = Terminal(server, tmp_path)
    for block in blocks(page, "bash", "python"):
        output = terminal.paste(block)
        assert '"error":{' not in output, f"{block.place}:\n{output}"
        if "chat/completions" in block.text:
            assert '"object":"chat.completion"' in output.replace(" ", ""), f"{block.place}:\n{output}"
        elif "OpenAI(" in block.text:
            assert output.strip(), block.place


@pytest.mark.parametrize("block", all_blocks("toml"), ids=lambda block: block.place)
def test_config_is_accepted(tmp_path: Path, block: Block) -> None:
    """A TOML block is a config that the service starts with, once its variables are set."""
    config = tmp_path / "cadenza.toml"
    config.write_text(block.text)
    variables = dict.fromkeys(re.findall(r'_env = "(\w+)"', block.text), "a-key")
    settings = load_settings(str(config), variables, tmp_path)
    assert settings.missing_secrets == ()


@pytest.mark.parametrize("block", all_blocks("json"), ids=lambda block: block.place)
def test_json_is_valid(block: Block) -> None:
    """A JSON block is valid JSON."""
    json.loads(block.text)
