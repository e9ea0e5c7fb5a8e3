"""`python -m tests.parts.life UPSTREAM BLOCKED…`: what a team does with a service, without parts that it left out.

Each BLOCKED names parts, with commas between them, that cannot be imported, and neither can their packages. What the
first of them blocks cannot be imported from the very beginning; the others block in a fork of the process.
"""

import contextlib
import http.client
import io
import json
import os
import re
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

from cadenza.parts import PARTS

EMAIL = "owner@example.org"
READY_S = 60.0
CONFIG = """
[providers.acme]
kind = "openai"
base_url = "{}"
retention = "zero"
[[classes.mezzo.routes]]
provider = "acme"
model = "acme-large"
"""


def block(names: str) -> None:
    for part in PARTS:
        if part.name in names.split(","):
            sys.modules |= dict.fromkeys((f"cadenza.parts.{part.name}", *part.packages))  # type: ignore[arg-type]


def run_command(args: Sequence[str]) -> None:
    from cadenza.cli import main as command_line  # noqa: PLC0415 after the blocking

    command_line(args)


def cadenza(*args: str, given: str = "") -> str:
    """What the command prints. It must succeed."""
    printed, sys.stdin, code = io.StringIO(), io.StringIO(given), None
    with contextlib.redirect_stdout(printed):
        try:
            run_command(args)
        except SystemExit as end:
            code = end.code
    assert not code, (args, code)
    return printed.getvalue()


def ask(port: int, key: str, *, stream: bool) -> bytes:
    asked = {"model": "mezzo", "stream": stream, "messages": [{"role": "user", "content": "Hello"}]}
    status, read = post(port, "/v1/chat/completions", json.dumps(asked), {"Authorization": f"Bearer {key}"})
    return read if status == 200 else str(status).encode()


def post(port: int, path: str, body: str, headers: Mapping[str, str]) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=READY_S)
    connection.request("POST", path, body, headers)
    response = connection.getresponse()
    return response.status, response.read()


def refuse_paths(port: int, names: str) -> None:
    """A path of the API that belongs to a part which is not there is a 404 with its extra."""
    paths = {own: part.name for part in PARTS if part.name in names.split(",") for own in part.owns if own[0] == "/"}
    for path, name in paths.items():
        status, read = post(port, f"{path}/", "{}", {})
        assert (status, f"'cadenza[{name}]'" in json.loads(read)["error"]["message"]) == (404, True), read


def serve(log: Path) -> tuple[int, int]:
    """The pid of a service in this folder, and its port."""
    if not (pid := os.fork()):
        os.dup2(os.open(log, os.O_CREAT | os.O_WRONLY), 1)
        os.dup2(1, 2)
        try:
            run_command(["serve", "--port", "0"])
        finally:
            os._exit(0)
    until = time.monotonic() + READY_S
    while time.monotonic() < until:
        if log.exists() and (found := re.search(r"API +http://\S+:(\d+)/v1", log.read_text())):
            return pid, int(found[1])
        time.sleep(0.02)
    raise AssertionError(log.read_text())


def password() -> list[str]:
    """How an account gets one, if a part wants it."""
    [part] = (part for part in PARTS if "account create" in part.commands)
    return ["--password-stdin"] if part.is_installed else []


def live(upstream: str, names: str) -> None:
    """Start, pay, ask, look, revoke, check, stop."""
    Path("cadenza.toml").write_text(CONFIG.format(upstream))
    cadenza("migrate")
    cadenza("account", "create", EMAIL, "--credit", "5", *password(), given="correct horse battery staple\n")
    key = cadenza("key", "create", "--account", EMAIL).split()[-1]
    pid, port = serve(Path("log"))
    try:
        assert json.loads(ask(port, key, stream=False))["choices"][0]["message"]["content"]
        assert ask(port, key, stream=True).endswith(b"data: [DONE]\n\n")
        assert sum(one["requests"] for one in json.loads(cadenza("usage", "--account", EMAIL, "--json"))) == 2
        refuse_paths(port, names)
        cadenza("key", "revoke", key)
        assert ask(port, key, stream=False) == b"401"
    finally:
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
    cadenza("ledger", "check")


def refuse_commands(names: str) -> None:
    """A command of a part that is not there is one sentence with its extra, and any other word is unknown."""
    commands = {words: part.name for part in PARTS if part.name in names.split(",") for words in part.commands}
    for words, name in commands.items():
        said = refused([*words.split(), "--no-such-option"])
        assert f"pip install 'cadenza[{name}]'" in said, said
    assert "No such command" in refused(["retain"])


def refused(args: Sequence[str]) -> str:
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.suppress(SystemExit):
        run_command(args)
        raise AssertionError(args)
    return said.getvalue()


def live_in_fork(upstream: str, names: str) -> bool:
    """Whether all went well without these parts."""
    if pid := os.fork():
        return os.waitpid(pid, 0)[1] == 0
    code = 1
    try:
        block(names)
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            live(upstream, names)
            refuse_commands(names)
            code = 0
    finally:
        if code:
            sys.stderr.write(f"without {names}: {traceback.format_exc()}")
            sys.stderr.flush()
        os._exit(code)


def main(upstream: str, first: str, others: Sequence[str]) -> None:
    block(first)
    from cadenza import app, cli  # noqa: F401, PLC0415 once for all forks

    failed = [names for names in (first, *others) if not live_in_fork(upstream, names)]
    sys.exit(f"failed without: {failed}" if failed else 0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
