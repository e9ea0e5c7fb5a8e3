"""`cadenza init`: what it asks at a terminal, what it takes as options, what it tries, and what it writes."""

import re
import stat
from pathlib import Path

import pytest

from cadenza.config import Settings, load_settings
from cadenza.config.settings import DEFAULT_PRICES
from cadenza.core.money import Price
from cadenza.upstreams.known import HOSTED
from tests.cli.program import PROGRAM, run_here
from tests.cli.terminal import at_terminal
from tests.docs.markdown import ROOT, blocks
from tests.loopback import Good, Json, LoopbackUpstream, Status

MODELS = Json(
    {"object": "list", "data": [{"id": "large-7"}, {"id": "small-7", "owned_by": "sglang", "max_model_len": 4000}]}
)
LIST_REFUSED = Status(404)
KEY_VARIABLE = "CADENZA_TEST_KEY"


def load(folder: Path, **variables: str) -> Settings:
    return load_settings(None, variables, folder)


def test_questions_at_a_terminal(tmp_path: Path, upstream: LoopbackUpstream) -> None:
    """It asks where, then which model, again after a mistake; shows the first answer and the price; writes a config."""
    upstream.script(MODELS, Status(404), Good("Hello from the model."))
    with at_terminal([PROGRAM, "init"], tmp_path) as typist:
        number = typist.wait_for(r"\d+  another address").split()[0]
        typist.answer("Number: ", number)
        typist.answer("base address.*: ", "htp://127.0.0.1/v1")
        typist.wait_for("the base address must be like https://host/v1")
        typist.answer("base address.*: ", upstream.base_url.removeprefix("http://").removesuffix("/v1"))
        typist.answer("Model: ", "large-7")
        typist.answer("Model: ", "small-7")
        typist.wait_for("Hello from the model")
        typist.wait_for(r"Accounts pay \$1.07 for a million tokens of prompts and \$3.45 of answers")
        typist.wait_for("cadenza serve")
    settings = load(tmp_path)
    [route] = settings.classes["forte"].routes
    provider = settings.providers[route.provider]
    assert (route.model, route.context_tokens, provider.base_url) == ("small-7", 4000, upstream.base_url)
    assert (provider.name, provider.dialect) == ("local", "sglang")
    assert (provider.api_key, [path.name for path in tmp_path.iterdir()]) == (None, ["cadenza.toml"])


def test_typed_key(tmp_path: Path, upstream: LoopbackUpstream) -> None:
    """A refused key is asked for again, and the one that works is in a private file; so is what the provider costs."""
    (tmp_path / "cadenza.toml").write_text("# an old one\n")
    (tmp_path / "openai.key").touch(0o644)
    upstream.script(LIST_REFUSED, Status(401), Good("It works."))
    with at_terminal([PROGRAM, "init", "--provider", "openai", "--url", upstream.base_url], tmp_path) as typist:
        typist.answer("Overwrite it.*: ", "y")
        typist.answer("key of OpenAI.*: ", "sk-wrong")
        typist.answer("name of a model.*: ", "gpt-7")
        typist.wait_for("rejects the provider's key")
        typist.answer("key of OpenAI.*: ", "sk-right")
        typist.wait_for("It works")
        typist.answer("tokens of prompts.*: ", "cheap")
        typist.answer("tokens of prompts.*: ", "$0.80")
        typist.answer("tokens of answers.*: ", "2.4")
        typist.wait_for("cadenza serve")
    assert "sk-" not in typist.shown
    assert [request.headers["authorization"] for request in upstream.requests] == [
        "Bearer sk-wrong",
        "Bearer sk-wrong",
        "Bearer sk-right",
    ]
    assert "sk-" not in (tmp_path / "cadenza.toml").read_text()
    assert stat.S_IMODE((tmp_path / "openai.key").stat().st_mode) == 0o600
    settings = load(tmp_path)
    provider = settings.providers["openai"]
    assert (provider.api_key, provider.dialect) == ("sk-right", "openai")
    assert settings.costs == {"openai/gpt-7": Price(800, 2_400)}
    assert settings.prices["forte"] == DEFAULT_PRICES["forte"]


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
    "no address": (["--url", "here", "--yes"], "the base address must be like https://host/v1"),
    "no scheme": (["--url", "127.0.0.1:1", "--yes", "--model", "m"], "127.0.0.1 does not answer: it refuses"),
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
