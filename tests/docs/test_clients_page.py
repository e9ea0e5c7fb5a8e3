"""The page of clients: its examples run, and its versions are those of the pins.

The examples of tests/clients/clients.py run in tests/clients, where their libraries are imported anyway.
"""

import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import msgspec
import pytest
import yaml

from cadenza.control.client_settings import CLIENTS as CLIENT_SETTINGS
from tests.cli.program import COMMAND_S
from tests.clients.clients import PYTHON_CLIENTS
from tests.clients.model import GREETING, ClientModel
from tests.debian import CannotInstall
from tests.docs.markdown import CLIENTS, Block, blocks
from tests.docs.paste import PASTE_S, Terminal
from tests.installed import INSTALL_S, NODE_PINS, PINS, PROGRAMS_S, give_up, node_environment, python_environment
from tests.loopback import LoopbackUpstream
from tests.service import EMAIL, Service

RUN_S = PASTE_S + COMMAND_S
PYTHON = {client.section for client in PYTHON_CLIENTS.values() if client.section}
SDKS = ["OpenAI for Python", "Azure", "Anthropic for Python"]
NODE = ["OpenAI for Node", "Anthropic for Node", "Vercel AI SDK"]
NOT_INSTALLED = {"LiteLLM", "aider", "opencode", "Qwen Code", "Continue", "Open WebUI"}
NOT_INSTALLED |= {"Generated clients", "Claude Code", "Codex"}
CONNECT = "One command"
ALL = blocks(CLIENTS, "bash", "python", "javascript")
EXAMPLES = {block.section: block for block in ALL if block.section not in NOT_INSTALLED}
CHECKS = {
    "bash": ["bash", "-n"],
    "python": [sys.executable, "-c", "import ast, sys; ast.parse(sys.stdin.read())"],
}

programs = pytest.mark.slow(reason="installs and runs other people's programs")
pytestmark = pytest.mark.timeout(PROGRAMS_S + 2 * INSTALL_S + RUN_S)


@pytest.fixture
def terminal(service: Service, upstream: LoopbackUpstream, tmp_path: Path) -> Terminal:
    upstream.always(ClientModel())
    made = Terminal(service, tmp_path)
    made.export(CADENZA_API_KEY=service.key, HOME=str(tmp_path))
    return made


def environment_of(name: str) -> Path:
    try:
        return node_environment() if name == "node" else python_environment(name)
    except CannotInstall as reason:
        give_up(reason)


@pytest.mark.parametrize("client", SDKS)
def test_sdk_example_runs(terminal: Terminal, client: str) -> None:
    """The example of an SDK prints an answer."""
    assert GREETING in terminal.paste(EXAMPLES[client])


@programs
@pytest.mark.parametrize("client", NODE)
def test_node_example_runs(terminal: Terminal, service: Service, client: str) -> None:
    """The example of a Node client prints an answer."""
    packages, link = environment_of("node") / "node_modules", service.folder / "node_modules"
    if not link.is_symlink():
        link.symlink_to(packages)
    assert GREETING in terminal.paste(EXAMPLES[client])


@programs
def test_llm_example_runs(terminal: Terminal, tmp_path: Path) -> None:
    """The commands of LLM print an answer."""
    program = environment_of("openai-3") / "llm"
    terminal.add_program("llm", f'#!/bin/sh\nexec "{program}" "$@"\n')
    terminal.export(LLM_USER_PATH=str(tmp_path))
    assert GREETING in terminal.paste(EXAMPLES["LLM"])


def test_connect_example_runs(terminal: Terminal, service: Service, tmp_path: Path) -> None:
    """The commands print the settings of one client, and write those of another into its file."""
    text = EXAMPLES[CONNECT].text.replace("demo@localhost", EMAIL)
    printed = terminal.paste(msgspec.structs.replace(EXAMPLES[CONNECT], text=text))
    assert 'wire_api = "responses"' in printed
    written = json.loads((tmp_path / ".claude" / "settings.json").read_text())
    assert written["env"]["ANTHROPIC_MODEL"] == "mezzo"


def test_the_page_has_the_clients_of_connect() -> None:
    """The table names each client of the command with its file, and each has a section and a version that was tried."""
    text = CLIENTS.read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (\[.*) \|$", text, re.MULTILINE))
    assert rows.keys() == CLIENT_SETTINGS.keys()
    for name, client in CLIENT_SETTINGS.items():
        assert rows[name].startswith(f"[{client.title}](#")
        assert f"`{client.file}`" in rows[name] or not client.file
        assert f"\n## {client.title}\n" in text
        assert f"\n| [{client.title}](#" in text


def test_every_example_is_run_or_read() -> None:
    """A section has one example that runs here or in tests/clients, or its client is listed as not installed."""
    assert set(EXAMPLES) == {*SDKS, *PYTHON, *NODE, "LLM", CONNECT}
    assert len(EXAMPLES) == len([block for block in ALL if block.section not in NOT_INSTALLED])


@pytest.mark.parametrize(
    "block", [block for block in ALL if block.section in NOT_INSTALLED], ids=lambda block: block.section
)
def test_other_example_is_well_formed(block: Block) -> None:
    """A block for a client that is not installed here is valid Python or shell."""
    subprocess.run(CHECKS[block.language], input=block.text, text=True, check=True, timeout=COMMAND_S)


@pytest.mark.parametrize("block", blocks(CLIENTS, "yaml"), ids=lambda block: block.section)
def test_yaml_is_valid(block: Block) -> None:
    """A YAML block is valid YAML."""
    assert {"models", "model_list"} & yaml.safe_load(block.text).keys()


def test_versions_are_those_of_the_pins() -> None:
    """The table names the version that the tests use for each client that they run."""
    pinned = dict(line.split("==") for file in PINS.glob("*.in") for line in file.read_text().split())
    python = {f"`{name.partition('[')[0]}` {version}" for name, version in pinned.items()}
    files = NODE_PINS.rglob("package.json")
    packages = [one for file in files for one in json.loads(file.read_text())["dependencies"].items()]
    node = {f"`{name}` {version}" for name, version in packages if name != "zod"}
    rows = re.findall(r"^\| \[.*by the tests.*$", CLIENTS.read_text(), re.MULTILINE)
    shown = {cell.strip() for row in rows for cell in row.split("|")[2].split(",")}
    assert shown == python | node | {f"`{name}` {metadata.version(name)}" for name in ("openai", "anthropic")}
