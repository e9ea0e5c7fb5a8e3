"""`cadenza serve` in an empty folder: what its screen shows, that it works, and that it ends without a trace."""

import json
import os
import signal
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.cli.curl import curl
from tests.cli.program import Server, is_alive, model_process, run, serving, wait_until
from tests.contract.wire import Wire

READY_S = 10.0  # about a second on an idle machine


class First(msgspec.Struct, frozen=True):
    """A first run, and how long it took to be ready."""

    server: Server
    ready_s: float


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Iterator[First]:
    folder = tmp_path_factory.mktemp("first")
    started_s = time.monotonic()
    with serving(folder) as server:
        assert Wire(server.port, None).get("/readyz").status == 200
        yield First(server, time.monotonic() - started_s)


def test_ready_soon(first: First) -> None:
    """A first run, its store and its demo account included, is ready within seconds."""
    assert first.ready_s < READY_S


def test_screen(first: First) -> None:
    """The screen shows the base address, the model, and an account with credit, password and key."""
    shown = first.server.output
    assert f"API       http://127.0.0.1:{first.server.port}/v1\n" in shown
    assert "smollm2-135m-instruct on this machine answers for mezzo, forte, fortissimo" in shown
    assert "demo@localhost, with 5.00 dollars of credit; password " in shown
    assert f"{first.server.key}   (shown this once)" in shown


def test_shown_account_is_there(first: First) -> None:
    """The account that is shown is the only one, and has the credit that is shown."""
    (account,) = json.loads(run(first.server.folder, "account", "list", "--json").stdout)
    assert (account["email"], account["balance"]) == ("demo@localhost", "5.00")


def test_shown_key_works(first: First) -> None:
    """The key that is shown opens the API."""
    reply = Wire(first.server.port, first.server.key).get("/v1/models")
    assert [model["id"] for model in reply.json["data"]] == ["auto", "mezzo", "forte", "fortissimo"]


def test_shown_curl_line_works(first: First) -> None:
    """The line that is shown, run as it is, is answered by the model."""
    reply = json.loads(curl(first.server.curl_line))
    assert reply["object"] == "chat.completion"
    assert reply["choices"][0]["message"]["content"]


def test_data_is_the_owners(first: First) -> None:
    """Nobody but the owner can look into the data."""
    data = first.server.folder / "data"
    assert stat.S_IMODE(data.stat().st_mode) == 0o700
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in data.rglob("*")}
    assert all(mode == (0o700 if path.is_dir() else 0o600) for path, mode in modes.items()), modes


def test_port_that_is_taken(tmp_path: Path) -> None:
    """A start on a taken port says what to do and ends before anything is made."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run(tmp_path, "serve", "--port", str(port))
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith(f"cadenza: cannot listen on 127.0.0.1:{port}: ")
    assert "--port" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_second_start_shows_no_key(furnished: Path) -> None:
    """Once there is an account, a start shows neither key nor password, but how to make another key."""
    with serving(furnished) as server:
        shown = server.output
    assert "sk-cdz-" not in shown
    assert "password" not in shown
    assert "cadenza key create --account EMAIL" in shown
    assert "$CADENZA_API_KEY" in shown


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_it(tmp_path: Path, number: signal.Signals) -> None:
    """Either signal ends the server with code 0, and its model with it."""
    with serving(tmp_path) as server:
        model = server.wait_for_model()
        assert server.end(number) == 0
        assert not is_alive(model)
        assert "Traceback" not in server.output


def test_end_while_the_model_loads(furnished: Path) -> None:
    """A server that is ended before its model has loaded leaves no process behind either."""
    with serving(furnished) as server:
        wait_until(lambda: model_process(server.pid) is not None, "the start of the model's process", server)
        model = model_process(server.pid)
        assert model is not None
        assert server.end(signal.SIGTERM) == 0
        assert not is_alive(model)


def test_killed_server_takes_its_model_along(tmp_path: Path) -> None:
    """When the server is killed outright, the model's process ends by itself."""
    with serving(tmp_path) as server:
        model = server.wait_for_model()
        os.kill(server.pid, signal.SIGKILL)
        wait_until(lambda: not is_alive(model), "the end of the model's process")
