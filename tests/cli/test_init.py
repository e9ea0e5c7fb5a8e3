"""`cadenza init`: what it asks at a terminal, what it takes as options, what it tries, and what it writes."""

import os
import pty
import re
import select
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cadenza.config import Settings, load_settings
from cadenza.upstreams.known import HOSTED
from tests.cli.program import PROGRAM, run_here
from tests.docs.markdown import ROOT, blocks
from tests.environment import environment
from tests.loopback import Good, Json, LoopbackUpstream, Status

MODELS = Json(
    {"object": "list", "data": [{"id": "large-7"}, {"id": "small-7", "owned_by": "sglang", "max_model_len": 4000}]}
)
LIST_REFUSED = Status(404)
KEY_VARIABLE = "CADENZA_TEST_KEY"
READ_BYTES = 4096
WAIT_S = 30.0


class Typist:
    """Types at the terminal of a command, when it shows a question."""

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self._unread = ""
        self.shown = ""

    def wait_for(self, pattern: str) -> str:
        """What the pattern matched, in what was shown after the last match."""
        while not (found := re.search(pattern, self._unread)):
            is_ready = select.select([self._terminal], [], [], WAIT_S)[0]
            assert is_ready, f"no {pattern!r} in:\n{self.shown}"
            read = os.read(self._terminal, READ_BYTES).decode()
            self._unread += read
            self.shown += read
        self._unread = self._unread[found.end() :]
        return found[0]

    def answer(self, question: str, typed: str) -> None:
        self.wait_for(question)
        os.write(self._terminal, f"{typed}\n".encode())


@contextmanager
def at_terminal(folder: Path, *args: str) -> Iterator[Typist]:
    """`cadenza init` at a terminal. It must succeed."""
    ours, theirs = pty.openpty()
    variables = environment(COLUMNS="120")
    for place in HOSTED:
        variables.pop(place.key_env or "", None)
    with subprocess.Popen(
        [PROGRAM, "init", *args], cwd=folder, env=variables, stdin=theirs, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        typist = Typist(ours)
        try:
            yield typist
            assert process.wait(60) == 0, typist.shown
        finally:
            process.kill()
            os.close(ours)


def load(folder: Path, **variables: str) -> Settings:
    return load_settings(None, variables, folder)


def test_questions_at_a_terminal(tmp_path: Path, upstream: LoopbackUpstream) -> None:
    """It asks where, then which model; shows the first answer; and writes a config that names both."""
    upstream.script(MODELS, Good("Hello from the model."))
    with at_terminal(tmp_path) as typist:
        number = typist.wait_for(r"\d+  another address").split()[0]
        typist.answer("Number: ", number)
        typist.answer("base address.*: ", f"{upstream.base_url}/")
        typist.answer("Model: ", "small-7")
        typist.wait_for("Hello from the model")
        typist.wait_for("cadenza serve")
    settings = load(tmp_path)
    [route] = settings.classes["forte"].routes
    provider = settings.providers[route.provider]
    assert (route.model, route.context_tokens, provider.base_url) == ("small-7", 4000, upstream.base_url)
    assert (provider.name, provider.dialect) == ("local", "sglang")
    assert (provider.api_key, [path.name for path in tmp_path.iterdir()]) == (None, ["cadenza.toml"])


def test_typed_key(tmp_path: Path, upstream: LoopbackUpstream) -> None:
    """A refused key is asked for again, and the one that works is in a file that only its owner can read."""
    (tmp_path / "cadenza.toml").write_text("# an old one\n")
    (tmp_path / "openai.key").touch(0o644)
    upstream.script(LIST_REFUSED, Status(401), Good("It works."))
    with at_terminal(tmp_path, "--provider", "openai", "--url", upstream.base_url) as typist:
        typist.answer("Overwrite it.*: ", "y")
        typist.answer("key of OpenAI.*: ", "sk-wrong")
        typist.answer("name of a model.*: ", "gpt-7")
        typist.wait_for("rejects the provider's key")
        typist.answer("key of OpenAI.*: ", "sk-right")
        typist.wait_for("It works")
        typist.wait_for("cadenza serve")
    assert "sk-" not in typist.shown
    assert [request.headers["authorization"] for request in upstream.requests] == [
        "Bearer sk-wrong",
        "Bearer sk-wrong",
        "Bearer sk-right",
    ]
    assert "sk-" not in (tmp_path / "cadenza.toml").read_text()
    assert stat.S_IMODE((tmp_path / "openai.key").stat().st_mode) == 0o600
    provider = load(tmp_path).providers["openai"]
    assert (provider.api_key, provider.dialect) == ("sk-right", "openai")


def test_options_instead_of_questions(
    tmp_path: Path, upstream: LoopbackUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --yes nothing is asked: the key comes from the variable, which the config names."""
    monkeypatch.setenv(KEY_VARIABLE, "sk-1")
    upstream.script(MODELS)
    given = ("--provider", "vllm", "--url", upstream.base_url, "--key-env", KEY_VARIABLE, "--model", "small-7")
    done = run_here(tmp_path, "init", *given, "--yes")
    assert (done.returncode, done.stdout) == (0, "Hello there, this is the upstream.\n"), done.stderr
    text = (tmp_path / "cadenza.toml").read_text()
    assert f'api_key_env = "{KEY_VARIABLE}"' in text
    assert 'dialect = "vllm"' in text
    assert load(tmp_path, **{KEY_VARIABLE: "sk-1"}).missing_secrets == ()
    chat = upstream.requests[-1]
    assert (chat.headers["authorization"], chat.json["model"]) == ("Bearer sk-1", "small-7")


REFUSALS = {
    "no provider": (["--yes"], "--yes needs --provider or --url"),
    "unknown provider": (["--provider", "opnai", "--yes"], "no address is known for 'opnai'; give it with --url; "),
    "no terminal": ([], "there is no terminal to ask at"),
    "no key": (["--provider", "openai", "--yes"], "put the key of OpenAI into OPENAI_API_KEY"),
    "empty variable": (["--provider", "groq", "--key-env", "NO_SUCH_KEY", "--yes"], "NO_SUCH_KEY is unset or empty"),
    "no address": (["--url", "127.0.0.1:1", "--yes"], "the base address must be like https://host/v1"),
    "plain http": (["--url", "http://api.acme.example/v1", "--model", "m", "--yes"], "use https"),
    "no folder": (["--config", "no/such.toml", "--yes"], "there is no folder "),
}


@pytest.mark.parametrize(("args", "said"), REFUSALS.values(), ids=REFUSALS)
def test_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], said: str) -> None:
    """A mistake in the options is one sentence that says what to do, and nothing is written."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    done = run_here(tmp_path, "init", *args)
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_model_that_does_not_answer(tmp_path: Path, upstream: LoopbackUpstream) -> None:
    """If the model fails, or none is named, nothing is written, and the reason or the models are said."""
    given = ("init", "--url", upstream.base_url, "--yes")
    upstream.script(MODELS, MODELS, Status(404))
    unnamed = run_here(tmp_path, *given)
    assert "--yes needs --model: large-7, small-7\n" in unnamed.stderr
    failed = run_here(tmp_path, *given, "--model", "other")
    assert "Check base_url and the name of the model of the route. Nothing was written." in failed.stderr
    assert (unnamed.returncode, failed.returncode, list(tmp_path.iterdir())) == (1, 1, [])


def test_existing_config_stays(tmp_path: Path, upstream: LoopbackUpstream) -> None:
    """Without --yes and without a terminal, a config that exists is not overwritten."""
    file = tmp_path / "cadenza.toml"
    file.write_text("# mine\n")
    done = run_here(tmp_path, "init", "--url", upstream.base_url, "--model", "m")
    assert done.stderr == "cadenza: cadenza.toml exists; --yes overwrites it, and --config writes another file\n"
    assert (file.read_text(), upstream.requests) == ("# mine\n", [])


def test_known_providers_are_documented(tmp_path: Path) -> None:
    """The page on upstreams has the address and the variable of every provider that init knows."""
    file, shown = tmp_path / "cadenza.toml", dict[str, tuple[str | None, str | None]]()
    for block in blocks(ROOT / "docs" / "upstreams.md", "toml"):
        file.write_text(block.text)
        variables = dict.fromkeys(re.findall(r'_env = "(\w+)"', block.text), "a-key")
        shown |= {name: (it.base_url, it.api_key_env) for name, it in load(tmp_path, **variables).providers.items()}
    assert {place.name: (place.base_url, place.key_env) for place in HOSTED}.items() <= shown.items()
