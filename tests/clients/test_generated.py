"""Clients that are generated from /openapi.json: generators take the whole document, and what they make works."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.clients.model import GREETING, ClientModel
from tests.clients.test_clients import PROGRAMS, RUN_S, run_clients
from tests.debian import CannotInstall
from tests.environment import environment
from tests.installed import INSTALL_S, PROGRAMS_S, give_up, node_environment, python_environment
from tests.loopback import LoopbackUpstream
from tests.openapi import read_document
from tests.service import Service

PACKAGE = "generated_client"
CONFIG = "post_hooks: []\n"  # no formatting

pytestmark = [
    pytest.mark.timeout(PROGRAMS_S + 2 * INSTALL_S + RUN_S),
    pytest.mark.release(reason="installs and runs other people's generators"),
]


@pytest.fixture
def document(service: Service, tmp_path: Path) -> Path:
    """The document, in a file beside which clients are generated."""
    path = tmp_path / "openapi.json"
    path.write_text(json.dumps(read_document(service.port).value))
    return path


def generate(command: list[str], folder: Path) -> str:
    """What the generator printed."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment(HOME=str(folder)),
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=True,
    )
    return done.stdout + done.stderr


def test_openapi_python_client(service: Service, upstream: LoopbackUpstream, document: Path) -> None:
    """It generates every operation without a warning; its client lists the models, chats, and reads an error."""
    upstream.always(ClientModel())
    try:
        programs = python_environment("generators")
    except CannotInstall as reason:
        give_up(reason)
    folder = document.parent
    (folder / "config.yaml").write_text(CONFIG)
    command = [str(programs / "openapi-python-client"), "generate", "--path", str(document), "--meta", "none"]
    printed = generate([*command, "--config", "config.yaml", "--output-path", PACKAGE], folder)
    assert printed.split() == ["Generating", PACKAGE], printed
    program = shutil.copy(PROGRAMS / "generated.py", folder)
    told = json.loads(run_clients([str(programs / "python"), str(program)], service, folder, folder))
    assert told["models"] == ["auto", "mezzo", "forte", "fortissimo"]
    assert (told["plain"], told["error"]) == (GREETING, "invalid_request_error")


def test_hey_api(document: Path) -> None:
    """The generator of TypeScript clients makes a function for every operation of the document."""
    try:
        node = node_environment()
    except CannotInstall as reason:
        give_up(reason)
    out = document.parent / "out"
    generate(["node", "node_modules/@hey-api/openapi-ts/bin/run.js", "-i", str(document), "-o", str(out)], node)
    made = (out / "sdk.gen.ts").read_text()
    paths = json.loads(document.read_text())["paths"].values()
    operations = [one["operationId"] for item in paths for one in item.values()]
    assert [name for name in operations if f"export const {name} = " not in made] == []
