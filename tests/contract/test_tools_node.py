"""The same agent on the OpenAI SDK for Node, at a pinned version that npm installs into pytest's cache.

If node and npm are missing and the tests run as root, Debian's packages are installed. If they or the registry are not
available the tests are skipped and say why; in CI that is a failure.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests import debian
from tests.contract.tool_upstream import ANSWER, DEGREES, DIALECTS, QUESTION, TOOLS, TURNS, ToolUpstream
from tests.loopback import LoopbackUpstream
from tests.service import Service

SDK_VERSION = "6.49.0"
INSTALL_S = 150.0
PROGRAMS_S = 240.0
RUN_S = 120.0
SCRIPT = Path(__file__).parent / "node" / "tools.mjs"
CACHE = Path(__file__).parents[2] / ".pytest_cache" / f"node-openai-{SDK_VERSION}"
PACKAGE = {"name": "agent", "private": True, "type": "module", "dependencies": {"openai": SDK_VERSION}}

pytestmark = pytest.mark.timeout(PROGRAMS_S + INSTALL_S + RUN_S)


def give_up(reason: str) -> NoReturn:
    if os.environ.get("CI") == "true":
        pytest.fail(f"the Node SDK is not tested: {reason}")
    pytest.skip(f"the Node SDK is not tested: {reason}")


@pytest.fixture(scope="module")
def agent() -> Path:
    """The script, next to an installed SDK."""
    if missing := [name for name in ("node", "npm") if shutil.which(name) is None]:
        try:
            debian.install("nodejs", "npm", limit_s=PROGRAMS_S)
        except debian.CannotInstall as reason:
            give_up(f"there is no {' and no '.join(missing)} on this machine, and {reason}")
    if not (CACHE / "node_modules" / "openai" / "package.json").exists():
        install()
    return Path(shutil.copy(SCRIPT, CACHE))


def install() -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    (CACHE / "package.json").write_text(json.dumps(PACKAGE))
    command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--omit=peer"]
    try:
        done = subprocess.run(command, cwd=CACHE, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    except subprocess.TimeoutExpired:
        give_up(f"npm did not install openai@{SDK_VERSION} within {INSTALL_S:.0f} s")
    if done.returncode != 0:
        give_up(f"npm could not install openai@{SDK_VERSION}: {done.stderr[-500:]}")


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
        cwd=CACHE,
        env=environment,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("form", ["whole", "stream", "helper"])
@pytest.mark.parametrize("dialect", ["ollama", "mistral"])
def test_agent_loop_on_node(agent: Path, service: Service, upstream: LoopbackUpstream, dialect: str, form: str) -> None:
    """Three turns with parallel calls reach their answer, and the upstream gets its own ids back in every turn."""
    model = ToolUpstream(DIALECTS[dialect])
    upstream.always(model)
    messages = run_agent(agent, service, form)
    assert model.problems == []
    assert messages[-1]["content"] == ANSWER
    rounds = [message["tool_calls"] for message in messages if message.get("tool_calls")]
    assert [
        [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls] for calls in rounds
    ] == [list(turn) for turn in TURNS]
