"""Client libraries against the real service, as programs in their own environments. What each got is checked."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.clients.clients import PYTHON_CLIENTS
from tests.clients.model import CITIES, GREETING, PIXEL, REPORT, ClientModel
from tests.conftest import StartService
from tests.debian import CannotInstall
from tests.docs.markdown import CLIENTS, blocks
from tests.docs.paste import at_port
from tests.environment import environment
from tests.installed import INSTALL_S, PROGRAMS_S, ROOT, give_up, node_environment, python_environment
from tests.loopback import LoopbackUpstream
from tests.service import Service
from tests.service_config import RouteSpec, ServiceSpec

RUN_S = 240.0
PROGRAMS = Path(__file__).parent / "programs"
EXAMPLES = {block.section: block.text for block in blocks(CLIENTS, "python")}
NODE_SDKS = ["anthropic", "openai", "openai_responses"]
# Of a stream that is aborted, of a wrong key, of an invalid request, and of a stream that breaks off.
SDK_ERRORS = ["APIUserAbortError", "AuthenticationError", "BadRequestError", "APIError"]
ENVIRONMENTS = sorted({client.environment for client in PYTHON_CLIENTS.values()})

pytestmark = [
    pytest.mark.timeout(PROGRAMS_S + 2 * INSTALL_S + RUN_S),
    pytest.mark.slow(reason="installs and runs other people's programs"),
]


def run_clients(command: list[str], service: Service, folder: Path, cwd: Path, given: str = "") -> str:
    """What they printed."""
    variables = {
        "CADENZA_BASE_URL": service.base_url,
        "CADENZA_API_KEY": service.key,
        "PIXEL": PIXEL,
        "LLM_USER_PATH": str(folder),
        "HOME": str(folder),
        "PYTHONPATH": "",  # they have packages of their own
    }
    done = subprocess.run(
        command,
        cwd=cwd,
        env=environment(**variables),
        input=given,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def check_answers(printed: str) -> None:
    """The last line says what the client's program got."""
    told: dict[str, Any] = json.loads(printed.splitlines()[-1])
    assert told["plain"] == GREETING
    assert "".join(told["stream"]) == GREETING
    assert len(told["stream"]) > 1
    assert sorted(told["calls"], key=str) == [["get_weather", {"city": city}] for city in CITIES]
    assert told["results"] == ", ".join(map(str, CITIES.values()))
    assert told["report"] == REPORT


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_python_clients(name: str, service: Service, upstream: LoopbackUpstream, tmp_path: Path) -> None:
    """Each gets an answer, a stream, two parallel calls in a stream, and a schema; its example on the page runs too."""
    upstream.always(ClientModel())
    sections = {client: one.section for client, one in PYTHON_CLIENTS.items() if one.environment == name}
    examples = {
        client: at_port(EXAMPLES[section], service.port) if section else "" for client, section in sections.items()
    }
    try:
        python = python_environment(name) / "python"
    except CannotInstall as reason:
        give_up(reason)
    command = [str(python), "-m", "tests.clients.programs.run"]
    printed = run_clients(command, service, tmp_path, ROOT, json.dumps(examples)).split("\0")[:-1]
    for section, text in zip(sections.values(), printed, strict=True):
        check_answers(text)
        if section:
            example = text.rpartition("\n{")[0]
            assert ("city='Oslo' degrees=4" if section == "Instructor" else GREETING) in example, section


def run_node_client(client: str, service: Service, folder: Path, *args: str) -> dict[str, Any]:
    """What it got, which is right but for its errors."""
    try:
        environment = node_environment()
    except CannotInstall as reason:
        give_up(reason)
    program = shutil.copy(PROGRAMS / f"{client}.mjs", environment)
    printed = run_clients(["node", str(program), *args], service, folder, environment)
    check_answers(printed)
    return dict(json.loads(printed))


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_vercels_sdk(service: Service, upstream: LoopbackUpstream, tmp_path: Path, api: str) -> None:
    """It gets an answer, a stream, both of two parallel calls that are streamed, and a filled-in schema."""
    upstream.always(ClientModel())
    run_node_client("ai_sdk", service, tmp_path, api)


@pytest.mark.parametrize("sdk", NODE_SDKS)
def test_node_sdk(sdk: str, start_service: StartService, upstream: LoopbackUpstream, tmp_path: Path) -> None:
    """Moreover the model sees its image, its errors are of its own classes, and aborting it leaves the upstream."""
    upstream.always(ClientModel())
    routes = {"forte": [RouteSpec("loopback", more_toml="vision = true\n")]}
    service = start_service(ServiceSpec({"loopback": upstream.base_url}, routes))
    assert run_node_client(sdk, service, tmp_path)["errors"] == SDK_ERRORS
    assert any(PIXEL in str(request.json) for request in upstream.requests)
    upstream.wait_for_disconnect()
    service.ledger.check()
