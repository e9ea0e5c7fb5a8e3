"""The nginx of deploy/nginx.conf on this machine: other ports, other gateways, and a folder of its own."""

import contextlib
import re
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.debian import find_or_install
from tests.deploy.files import DEPLOY
from tests.processes import children, read_of
from tests.service import wait_until

END_S = 60.0
GATEWAY = re.compile(r"server 172\.31\.240\.\d+:8080")


class Nginx:
    """A running nginx."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path, port: int) -> None:
        self.port = port
        self._process = process
        self._folder = folder

    def take_out(self, gateway_port: int) -> None:
        """Mark a gateway as down and reload the config, as the docs say. Old workers go on with what they have."""
        config, before = self._folder / "nginx.conf", self._workers()
        line = f"server 127.0.0.1:{gateway_port} max_fails=0"
        assert config.read_text().count(line) == 1
        config.write_text(config.read_text().replace(line, f"{line} down"))
        self._process.send_signal(signal.SIGHUP)
        wait_until(lambda: bool(self._accepting()) and not before & self._accepting(), "nginx reloading its config")

    def open_temporary_files(self) -> list[str]:
        """The files that its workers have open in its folder. nginx deletes them at once, but they are on the disk."""
        targets = list[str]()
        for link in [link for worker in self._workers() for link in Path(f"/proc/{worker}/fd").iterdir()]:
            with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
                targets.append(str(link.readlink()))
        return [target for target in targets if target.startswith(str(self._folder))]

    def _workers(self) -> set[int]:
        return children(self._process.pid)

    def _accepting(self) -> set[int]:
        """The workers that have neither ended nor begun to."""
        commands = {worker: read_of(worker, "cmdline") for worker in self._workers()}
        return {worker for worker, command in commands.items() if command and b"shutting down" not in command}


@contextlib.contextmanager
def kept_port() -> Iterator[int]:
    """A port that the system gives to nobody else, but where another socket can listen that shares its address."""
    with socket.socket() as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", 0))
        yield kept.getsockname()[1]


@contextlib.contextmanager
def running_nginx(gateway_ports: Sequence[int]) -> Iterator[Nginx]:
    """In front of these gateways; the first is asked first."""
    program = find_or_install("nginx", "nginx-light")
    with kept_port() as port, tempfile.TemporaryDirectory(prefix="cadenza-nginx-") as folder:
        config = render(Path(folder), port, gateway_ports)
        process = subprocess.Popen([program, "-c", config, "-e", "stderr", "-g", "daemon off;"])
        try:
            wait_until(lambda: _listens(port), "nginx listening")
            yield Nginx(process, Path(folder), port)
        finally:
            process.terminate()
            process.wait(END_S)


def render(folder: Path, port: int, gateway_ports: Sequence[int], text: str | None = None) -> Path:
    """Write the config for this machine. One worker, so that the first gateway is known."""
    text = text or (DEPLOY / "nginx.conf").read_text()
    first, *others = GATEWAY.findall(text)
    assert len(others) + 1 >= len(gateway_ports)
    ports = iter(gateway_ports)
    lines = [
        GATEWAY.sub(lambda _: f"server 127.0.0.1:{next(ports, 0)}", line)
        for line in text.replace("/tmp/", f"{folder}/")
        .replace("listen 8080;", f"listen 127.0.0.1:{port};")
        .splitlines()
    ]
    kept = [line for line in lines if "server 127.0.0.1:0 " not in line]
    config = folder / "nginx.conf"
    config.write_text("\n".join(kept).replace("worker_processes auto;", "worker_processes 1;") + "\n")
    assert first not in config.read_text()
    return config


def _listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0
