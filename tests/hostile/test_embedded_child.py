"""13. The model's process has neither the listening socket nor the keys of providers. A hung one holds up nothing."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.program import model_process
from tests.hostile.started import Started, started
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

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
    pytest.mark.slow(reason="a hung model is waited for"),
]


class Model:
    """A service and the process of its model."""

    def __init__(self, running: Started, parent: int) -> None:
        self.running = running
        found = model_process(parent)
        assert found
        self.pid = found

    @property
    def environment(self) -> dict[str, str]:
        pairs = Path(f"/proc/{self.pid}/environ").read_text().split("\0")
        return dict(pair.split("=", 1) for pair in pairs if pair)

    @property
    def files(self) -> set[str]:
        """What its file descriptors are."""
        return {str(link.readlink()) for link in Path(f"/proc/{self.pid}/fd").iterdir()}


@contextlib.contextmanager
def running_model(workers: int) -> Iterator[Model]:
    spec = ServiceSpec(
        {"acme": "http://127.0.0.1:9/v1"}, {"forte": [RouteSpec("acme")]}, EMBEDDED.format(workers=workers)
    )
    with Deployment(spec) as deployment, started(deployment, VARIABLES) as running:
        wait_until(lambda: running.output.count("the embedded model is ready") == workers, "the model")
        parent = next(pid for pid in (running.pid, *running.children) if model_process(pid))
        yield Model(running, parent)


@pytest.fixture(params=[1, 2], ids=["one process", "workers"])
def model(request: pytest.FixtureRequest) -> Iterator[Model]:
    with running_model(request.param) as found:
        yield found


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may look into the model's process")
def test_the_model_gets_neither_keys_nor_sockets(model: Model) -> None:
    """No secret is in its environment, and of the sockets on this machine it has only those that it opened itself."""
    assert SECRET not in model.environment.values()
    assert not VARIABLES.keys() & model.environment.keys()
    assert {"PATH", "HOME"} <= model.environment.keys()
    assert f"socket:[{listener_inode(model.running.port)}]" not in model.files
    assert not [name for name in model.files if "cadenza.db" in name]


def test_a_hung_model_neither_keeps_the_port_nor_delays_the_end(model: Model) -> None:
    """The service ends, with exit code 0, and nothing listens on its port any more."""
    inode = listener_inode(model.running.port)
    os.kill(model.pid, signal.SIGSTOP)
    model.running.process.send_signal(signal.SIGTERM)
    assert model.running.process.wait(END_S) == 0  # the model, which is stopped, would never end
    assert inode not in listeners().values()
    wait_until(lambda: not is_alive(model.pid), "the end of the model's process")


def test_a_hung_model_of_a_killed_service_ends_with_it() -> None:
    """Where the service is killed, its hung model is killed with it, and the port is free."""
    with running_model(workers=1) as model:
        inode = listener_inode(model.running.port)
        os.kill(model.pid, signal.SIGSTOP)
        model.running.process.kill()
        model.running.process.wait(END_S)
        assert inode not in listeners().values()
        wait_until(lambda: not is_alive(model.pid), "the end of the model's process")


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
