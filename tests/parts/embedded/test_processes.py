"""13. The processes of a service with the embedded model: what each may have of the others, and a model that hangs."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.program import model_process
from tests.hostile.started import Started, core_limits, started
from tests.processes import is_alive
from tests.service import END_S, Deployment, wait_until
from tests.service_config import RouteSpec, ServiceSpec

SECRET = "sk-a-key-of-a-provider"
VARIABLES = {"ACME_API_KEY": SECRET, "METRICS_TOKEN": SECRET, "DATABASE_URL": SECRET, "AWS_SECRET_ACCESS_KEY": SECRET}
EMBEDDED = """
[server]
workers = {workers}
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
    pytest.mark.slow(reason="the real model is loaded, and a hung one is waited for"),
]


class Family:
    """A service, and the processes of its workers and their models."""

    def __init__(self, running: Started, workers: int) -> None:
        self.running = running
        parents = [pid for pid in (running.pid, *running.children) if model_process(pid)]
        self.models = [*filter(None, map(model_process, parents))]
        self.pids = {running.pid, *parents, *self.models}
        assert len(self.models) == workers


@contextlib.contextmanager
def family_of(workers: int, prefix: tuple[str, ...] = ()) -> Iterator[Family]:
    toml = EMBEDDED.format(workers=workers)
    spec = ServiceSpec({"acme": "http://127.0.0.1:9/v1"}, {"forte": [RouteSpec("acme")]}, toml)
    with Deployment(spec) as deployment, started(deployment, VARIABLES, prefix) as running:
        wait_until(lambda: running.output.count("the embedded model is ready") == workers, "each model")
        yield Family(running, workers)


def unprivileged() -> tuple[str, ...]:
    """What to put before a command so that it runs without the rights of root."""
    return WITHOUT_RIGHTS if os.geteuid() == 0 else ()


@pytest.fixture(scope="module")
def family() -> Iterator[Family]:
    """A parent, two workers and their models."""
    with family_of(2, unprivileged()) as found:
        yield found


def test_no_process_may_write_a_core_file(family: Family) -> None:
    """The limit of a core file, which would hold prompts and keys, is 0 for every process, and cannot be raised."""
    assert {core_limits(pid) for pid in family.pids} == {("0", "0")}


def test_another_process_of_the_user_sees_neither_memory_nor_keys(family: Family) -> None:
    """A process of the same user can open neither the memory nor the environment of any of them."""
    for pid in family.pids:
        command = [*unprivileged(), sys.executable, "-c", LOOK, str(pid)]
        looked = subprocess.run(command, capture_output=True, text=True, check=True)
        assert looked.stdout.split("\n") == ["environ refused", "mem refused", ""], pid


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may look into the model's process")
def test_the_model_gets_neither_keys_nor_sockets(family: Family) -> None:
    """No secret is in its environment, and of the sockets on this machine it has only those that it opened itself."""
    for pid in family.models:
        pairs = Path(f"/proc/{pid}/environ").read_text().split("\0")
        environment = dict(pair.split("=", 1) for pair in pairs if pair)
        files = {str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()}
        assert SECRET not in environment.values()
        assert not VARIABLES.keys() & environment.keys()
        assert {"PATH", "HOME"} <= environment.keys()
        assert f"socket:[{listener_inode(family.running.port)}]" not in files
        assert not [name for name in files if "cadenza.db" in name]


@pytest.mark.parametrize(("workers", "number"), [(2, signal.SIGTERM), (1, signal.SIGTERM), (1, signal.SIGKILL)])
def test_a_hung_model_neither_keeps_the_port_nor_delays_the_end(workers: int, number: signal.Signals) -> None:
    """The service ends, with exit code 0 unless it is killed, its model with it, and nothing listens on its port."""
    with family_of(workers) as family:
        process, inode = family.running.process, listener_inode(family.running.port)
        os.kill(family.models[0], signal.SIGSTOP)
        process.send_signal(number)
        assert process.wait(END_S) == (0 if number is signal.SIGTERM else -number)  # the stopped model would never end
        assert inode not in listeners().values()
        wait_until(lambda: not is_alive(family.models[0]), "the end of the model's process")


def listener_inode(port: int) -> str:
    """The number that the kernel gave to the socket that listens on this port."""
    address = f"0100007F:{port:04X}"
    found = dict[str, str]()

    def is_listed() -> bool:  # while the kernel's list changes, it may lack a line
        found.update(listeners())
        return address in found

    wait_until(is_listed, "the port in the list of the kernel")
    return found[address]


def listeners() -> dict[str, str]:
    """Each address of this machine where a socket listens, and the socket's number."""
    sockets = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    return {fields[1]: fields[9] for fields in sockets if fields[3] == "0A"}
