"""The same agent on the OpenAI SDK for Node, in the environment of tests/installed.py."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.contract.agent import ANSWER, DEGREES, QUESTION, TOOLS, TURNS, calls_made
from tests.contract.dialects.stage import Stage
from tests.debian import CannotInstall
from tests.installed import INSTALL_S, PROGRAMS_S, give_up, node_environment
from tests.service import Service

RUN_S = 120.0
SCRIPT = Path(__file__).parents[1] / "node" / "tools.mjs"

pytestmark = [
    pytest.mark.timeout(PROGRAMS_S + INSTALL_S + RUN_S),
    pytest.mark.slow(reason="installs and runs other people's programs"),
]


@pytest.fixture(scope="module")
def agent() -> Path:
    """The script, next to an installed SDK."""
    try:
        return Path(shutil.copy(SCRIPT, node_environment()))
    except CannotInstall as reason:
        give_up(reason)


def run_agent(agent: Path, service: Service, form: str) -> Any:
    order = {
        "baseURL": service.base_url,
        "apiKey": service.key,
        "form": form,
        "messages": [{"role": "user", "content": QUESTION}],
        "tools": TOOLS,
        "degrees": DEGREES,
    }
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    done = subprocess.run(
        ["node", str(agent)],
        input=json.dumps(order),
        cwd=agent.parent,
        env=environment,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("form", ["whole", "stream", "helper"])
@pytest.mark.parametrize("dialect", ["groq", "mistral"])  # which want no reasoning back: this SDK drops it
def test_agent_loop_on_node(agent: Path, stage: Stage, dialect: str, form: str) -> None:
    """Three turns with parallel calls reach their answer, and the upstream gets its own ids back in every turn."""
    stage.switch(dialect)
    with stage.conversation():
        messages = run_agent(agent, stage.service, form)
    assert messages[-1]["content"] == ANSWER
    assert calls_made(messages) == [list(turn) for turn in TURNS]
