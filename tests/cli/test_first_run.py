"""`cadenza serve` in an empty folder: what its screen shows, that it works, and that it stops cleanly."""

import json
import os
import re
import signal
import socket
import sqlite3
import stat
import sys
from collections.abc import Iterator
from contextlib import closing
from importlib.metadata import version
from pathlib import Path

import pytest

from cadenza.cli.start import without_credentials
from cadenza.terminal.configured import command_to_paste
from tests.cli.curl import curl
from tests.cli.program import PROGRAM, Server, model_process, run, run_here, serving, wait_until
from tests.processes import is_alive
from tests.raw_client import RawClient
from tests.visitor import Visitor


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("first"), at_terminal=True) as server:
        wait_until(lambda: RawClient(server.port, None).get("/readyz").status == 200, "being ready", server)
        yield server


def test_screen(first: Server) -> None:
    """The screen shows the addresses, the model, and an account with its credit, password and key."""
    shown = first.output
    assert f"Pages     http://127.0.0.1:{first.port}/   (sign in as demo@localhost)\n" in shown
    assert f"API       http://127.0.0.1:{first.port}/v1\n" in shown
    assert "smollm2-135m-instruct on this machine answers for mezzo, forte, fortissimo" in shown
    assert re.search(r"\n +It is small and often wrong\. To use a better model: \S*cadenza init\n", shown)
    assert "Grounding files, memory" in shown
    assert "Account   demo@localhost, with 5.00 dollars of credit\n" in shown
    assert re.search(r"Password  \S{16}   \(shown only this once\)\n", shown)
    assert f"{first.key}   (shown only this once)" in shown


def test_shown_link_makes_the_operator(first: Server) -> None:
    """The link on the screen, which is not in the log, makes an operator once, and then says that it was used."""
    [path] = re.findall(rf"Operator +http://127.0.0.1:{first.port}(/join/\S+) ", first.output)
    assert not [line for line in first.output.splitlines() if line.startswith("{") and path in line]
    assert first.output.count(path) == 1
    visitor = Visitor(first.port)
    assert "first operator" in visitor.get(path).words
    chosen = {"email": "operator@example.org", "password": "correct horse battery staple"}
    assert visitor.post(path, chosen).location == "/operator?note=welcome"
    assert "Your account is ready." in visitor.get("/operator?note=welcome").words
    again = visitor.get(path)
    assert (again.status, "This link was used before" in again.words) == (404, True)
    assert "/operator/accounts/acct_" in visitor.get("/credit").text, "the operator can add the credit"


def test_shown_account_exists(first: Server) -> None:
    """The account on the screen is the first, has the credit on the screen, and is an ordinary one."""
    account = json.loads(run_here(first.folder, "account", "list", "--json").stdout)[0]
    assert (account["email"], account["balance"]) == ("demo@localhost", "5.00")
    with closing(sqlite3.connect(first.folder / "data" / "cadenza.db")) as store:
        assert store.execute("SELECT is_operator FROM accounts WHERE email = 'demo@localhost'").fetchone() == (0,)


def test_shown_curl_line_works(first: Server) -> None:
    """The curl line on the screen, pasted with a lower limit, gets an answer from the model."""
    line = first.curl_line
    assert '"max_tokens": 60' in line
    reply = json.loads(curl(line.replace('"max_tokens": 60', '"max_tokens": 4')))
    assert reply["object"] == "chat.completion"
    assert reply["choices"][0]["message"]["content"]


def test_start_is_logged(first: Server) -> None:
    """One structured line says version, process, store, workers and address."""
    [line] = [line for line in map(parsed, first.output.splitlines()) if line.get("event") == "starting"]
    assert line["version"] == version("cadenza")
    assert line["pid"] == first.pid
    assert line["store"] == f"sqlite:///{first.folder}/data/cadenza.db"
    assert (line["workers"], line["address"]) == (1, f"127.0.0.1:{first.port}")


def test_store_is_logged_without_credentials() -> None:
    """User, password and query of a store's address do not reach the log."""
    assert without_credentials("postgresql://me:se%40cret@db:5432/cadenza?password=x") == "postgresql://db:5432/cadenza"


def parsed(line: str) -> dict[str, object]:
    """A line of the log; nothing for a line of the screen."""
    return dict(json.loads(line)) if line.startswith("{") else {}


def test_only_the_owner_can_read_the_data(first: Server) -> None:
    """The files of the store are readable by their owner only."""
    data = first.folder / "data"
    assert stat.S_IMODE(data.stat().st_mode) == 0o700
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in data.rglob("*")}
    assert all(mode == (0o700 if path.is_dir() else 0o600) for path, mode in modes.items()), modes


def test_port_in_use(tmp_path: Path) -> None:
    """A start on a port that is in use says what to do and stops before it creates anything."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run(tmp_path, "serve", "--port", str(port))
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith(f"cadenza: cannot listen on 127.0.0.1:{port}: ")
    assert "--port" in done.stderr
    assert list(tmp_path.iterdir()) == []


def check_stop(server: Server, number: signal.Signals) -> None:
    model = server.wait_for_model()
    assert server.end(number) == 0
    assert not is_alive(model)
    assert "Traceback" not in server.output


def test_secrets_are_shown_at_a_terminal_only(tmp_path: Path) -> None:
    """A journal gets no password, key or link, but the commands that print them; a second start has the link alone."""
    with serving(tmp_path) as server:
        first = server.output.replace(str(PROGRAM), "cadenza")  # which PATH may lack
        made = run_here(tmp_path, "account", "link", "operator")
    for secret in ("sk-cdz-", "/join/"):
        assert secret not in first
    assert "to set it: cadenza account password demo@localhost\n" in first
    assert "to create one: cadenza key create --account demo@localhost\n" in first
    assert "to print a link that makes one, once: cadenza account link operator\n" in first
    assert json.loads(run_here(tmp_path, "key", "list", "--account", "demo@localhost", "--json").stdout) == []
    assert re.fullmatch(r"http://127.0.0.1:\d+/join/\S+\n", made.stdout), made.stderr
    with serving(tmp_path, at_terminal=True) as server:
        second = server.output
    assert ("sk-cdz-" in second, "/join/" in second) == (False, True)
    assert run_here(tmp_path, "account", "operator", "demo@localhost").returncode == 0
    done = run_here(tmp_path, "account", "link", "operator")
    assert (done.returncode, done.stdout) == (1, "")
    assert "There is an operator already" in done.stderr


@pytest.mark.parametrize(
    ("called", "config", "shown"),
    [
        (".venv/bin/cadenza", None, ".venv/bin/cadenza key list"),
        ("/opt/cadenza/bin/cadenza", "cadenza.toml", "/opt/cadenza/bin/cadenza key list"),
        (str(PROGRAM), "cadenza.toml", "cadenza key list"),
        (str(PROGRAM), "my own.toml", "cadenza key list --config '{folder}/my own.toml'"),
    ],
)
def test_commands_on_the_screen_can_be_pasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, called: str, config: str | None, shown: str
) -> None:
    """They name the program as it was called, unless PATH leads to it, and a config that is not found by itself."""
    monkeypatch.setattr(sys, "argv", [called, "serve"])
    monkeypatch.setenv("PATH", str(PROGRAM.parent))
    monkeypatch.chdir(tmp_path)
    assert command_to_paste(tmp_path / config if config else None, "key list") == shown.format(folder=tmp_path)


def test_second_start_shows_no_key(furnished: Path) -> None:
    """With accounts, a start shows no key and no password, but how to make a key and an operator; SIGINT stops it."""
    with serving(furnished) as server:
        shown = server.output.replace(str(PROGRAM), "cadenza")
        check_stop(server, signal.SIGINT)
    assert "sk-cdz-" not in shown
    assert "password" not in shown
    assert "/join/" not in shown
    assert "cadenza key create --account EMAIL" in shown
    assert "Operator  none yet; to make an account one: cadenza account operator EMAIL" in shown
    assert "$CADENZA_API_KEY" in shown


@pytest.mark.slow(reason="the real model is loaded")
def test_stop_while_the_model_loads(furnished: Path) -> None:
    """A server that is stopped while its model loads leaves no process behind."""
    with serving(furnished) as server:
        wait_until(lambda: model_process(server.pid) is not None, "the start of the model's process", server)
        model = model_process(server.pid)
        assert model is not None
        assert server.end(signal.SIGTERM) == 0
        assert not is_alive(model)


@pytest.mark.slow(reason="the real model is loaded")
def test_model_ends_with_a_killed_server(furnished: Path) -> None:
    """When the server is killed, the process of the model ends by itself."""
    with serving(furnished) as server:
        model = server.wait_for_model()
        os.kill(server.pid, signal.SIGKILL)
        wait_until(lambda: not is_alive(model), "the end of the model's process")


def test_termination_stops_it(first: Server) -> None:
    """SIGTERM stops the server with exit code 0, and its model with it. This ends the first run: the last test."""
    check_stop(first, signal.SIGTERM)
