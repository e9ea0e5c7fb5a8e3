"""12. A core file, and the memory of a process, hold prompts and keys: neither can be had by another process."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.cli.program import model_process
from tests.hostile.started import Started, core_limits, started
from tests.service import Deployment, wait_until
from tests.service_config import RouteSpec, ServiceSpec

SECRET = "sk-a-key-of-a-provider"
NONE = ("0", "0")
EMBEDDED = """
[server]
workers = 2
[providers.local]
kind = "embedded"
retention = "zero"
[[classes.forte.routes]]
provider = "local"
order = 1
"""
# What a process of the same user could do: read the environment, and open the memory.
WITHOUT_RIGHTS = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")  # root, but as powerless as any user
LOOK = """
import sys
for name in ("environ", "mem"):
    try:
        with open(f"/proc/{sys.argv[1]}/{name}", "rb") as file:
            print(name, file.read() if name == "environ" else "opened")
    except OSError as error:
        print(name, "refused")
"""

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
    pytest.mark.slow(reason="the real model is loaded"),
]


@pytest.fixture(scope="module")
def running() -> Iterator[Started]:
    """Two workers with the embedded model."""
    spec = ServiceSpec({"acme": "http://127.0.0.1:9/v1"}, {"forte": [RouteSpec("acme")]}, EMBEDDED)
    with Deployment(spec) as deployment, started(deployment, {"ACME_API_KEY": SECRET}, unprivileged()) as found:
        yield found


def unprivileged() -> tuple[str, ...]:
    """What to put before a command so that it runs without the rights of root."""
    return WITHOUT_RIGHTS if os.geteuid() == 0 else ()


@pytest.fixture(scope="module")
def processes(running: Started) -> dict[str, int]:
    """The parent, its workers and their models."""
    wait_until(lambda: running.output.count("the embedded model is ready") == 2, "two models")
    workers = [child for child in running.children if model_process(child)]
    models = filter(None, map(model_process, workers))
    found = {"parent": running.pid}
    found |= {f"worker {number}": pid for number, pid in enumerate(workers)}
    found |= {f"model {number}": pid for number, pid in enumerate(models)}
    assert len(found) == 5, found
    return found


def test_no_process_may_write_a_core_file(processes: dict[str, int]) -> None:
    """The limit of a core file is 0 for every process, and cannot be raised again."""
    assert {name: core_limits(pid) for name, pid in processes.items()} == dict.fromkeys(processes, NONE)


def test_another_process_of_the_user_sees_neither_memory_nor_keys(processes: dict[str, int]) -> None:
    """A process of the same user can open neither the memory nor the environment of any of them."""
    for name, pid in processes.items():
        command = [*unprivileged(), sys.executable, "-c", LOOK, str(pid)]
        looked = subprocess.run(command, capture_output=True, text=True, check=True)
        assert looked.stdout.split("\n") == ["environ refused", "mem refused", ""], name
