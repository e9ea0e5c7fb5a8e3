"""Client libraries against the real service, each as a program in its own environment. What it got is checked."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.clients.model import CITIES, GREETING, REPORT, ClientModel
from tests.debian import CannotInstall
from tests.environment import environment
from tests.installed import INSTALL_S, PROGRAMS_S, ROOT, give_up, node_environment, python_environment
from tests.loopback import LoopbackUpstream
from tests.service import Service

RUN_S = 120.0
PROGRAMS = Path(__file__).parent / "programs"
PYTHON_CLIENTS = {
    "instructor": "openai-2",
    "langchain": "openai-3",
    "llama_index": "openai-2",
    "llm": "openai-3",
    "openai_agents": "openai-3",
    "pydantic_ai": "openai-3",
}
NODE_CLIENTS = ["ai_sdk", "openai"]

pytestmark = pytest.mark.timeout(PROGRAMS_S + 2 * INSTALL_S + RUN_S)


def run_client(command: list[str], service: Service, folder: Path, cwd: Path) -> Any:
    variables = {
        "CADENZA_BASE_URL": service.base_url,
        "CADENZA_API_KEY": service.key,
        "LLM_USER_PATH": str(folder),
        "HOME": str(folder),
        "PYTHONPATH": "",  # they have packages of their own
    }
    done = subprocess.run(
        command,
        cwd=cwd,
        env=environment(**variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check_answers(told: Any) -> None:
    assert told["plain"] == GREETING
    assert "".join(told["stream"]) == GREETING
    assert len(told["stream"]) > 1
    assert sorted(told["calls"], key=str) == [["get_weather", {"city": city}] for city in CITIES]
    assert told["results"] == ", ".join(map(str, CITIES.values()))
    assert told["report"] == REPORT


@pytest.mark.parametrize("client", PYTHON_CLIENTS)
def test_python_client(client: str, service: Service, upstream: LoopbackUpstream, tmp_path: Path) -> None:
    """A client gets an answer, a stream, both of two parallel calls that are streamed, and a filled-in schema."""
    upstream.always(ClientModel())
    try:
        python = python_environment(PYTHON_CLIENTS[client]) / "python"
    except CannotInstall as reason:
        give_up(reason)
    check_answers(run_client([str(python), "-m", f"tests.clients.programs.{client}"], service, tmp_path, ROOT))


@pytest.mark.parametrize("client", NODE_CLIENTS)
def test_node_client(client: str, service: Service, upstream: LoopbackUpstream, tmp_path: Path) -> None:
    """A client gets an answer, a stream, both of two parallel calls that are streamed, and a filled-in schema."""
    upstream.always(ClientModel())
    try:
        folder = node_environment()
    except CannotInstall as reason:
        give_up(reason)
    program = shutil.copy(PROGRAMS / f"{client}.mjs", folder)
    check_answers(run_client(["node", str(program)], service, tmp_path, folder))
