"""Mistakes on the command line and in the config: one sentence says what is wrong, nothing changes, exit code 1."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from cadenza.cli.start import CONFIG_EXIT
from tests.cli.conftest import EMAIL, PASSWORD
from tests.cli.program import Done, run, run_here

NEW = "new@example.org"
MISTYPED_KEY = "sk-cdz-" + "a" * 49
SEVERAL_TOML = """
[server]
prot = 8080
[store]
url = "mysql://localhost/x"
[limits]
burst = 0
"""
ROUTE_TOML = """
[[classes.forte.routes]]
provider = "acme"
model = "large"
"""
NO_RETENTION_TOML = '[providers.acme]\nkind = "openai"\nbase_url = "http://127.0.0.1:9/v1"\n' + ROUTE_TOML
NO_SECRET_TOML = NO_RETENTION_TOML.replace("kind", 'retention = "zero"\napi_key_env = "ACME_TEST_KEY"\nkind')


TWO_CLASSES_TOML = """
[providers.local]
kind = "embedded"
retention = "zero"
[[classes.fortissimo.routes]]
provider = "local"
[[classes.forte.routes]]
provider = "local"
"""


class Mistake(msgspec.Struct, frozen=True):
    """A command that is refused, and parts of its error message."""

    args: tuple[str, ...]
    says: tuple[str, ...]
    toml: str = ""
    given: str = PASSWORD


def _credit(*amount: str) -> tuple[str, ...]:
    return ("account", "credit", EMAIL, *amount)


def _create(email: str, *options: str) -> tuple[str, ...]:
    return ("account", "create", email, "--password-stdin", *options)


def _key(*options: str) -> tuple[str, ...]:
    return ("key", "create", "--account", EMAIL, *options)


MISTAKES: Mapping[str, Mistake] = {
    "credit of ten decimals": Mistake(_credit("1.0000000001"), ("9 decimals",)),
    "negative credit": Mistake(_credit("-5"), ("-5 is negative; write an amount like 5.00",)),
    "negative credit before an option": Mistake(_credit("-.5", "--note", "x"), ("-.5 is negative",)),
    "negative credit after two dashes": Mistake(_credit("--", "-5"), ("-5 is negative",)),
    "credit that is not a number": Mistake(_credit("NaN"), ("not an amount of dollars", "5.00")),
    "credit above the maximum": Mistake(_credit("9" * 30), ("more than 1,000,000,000 dollars",)),
    "credit with an exponent": Mistake(_credit("1e3"), ("'1e3' is not an amount of dollars", "5.00")),
    "credit in digits of another script": Mistake(_credit("٥"), ("'٥' is not an amount of dollars", "5.00")),
    "credit in words": Mistake(_credit("abc"), ("'abc' is not an amount of dollars", "5.00")),
    "credit of zero": Mistake(_credit("0"), ("above zero",)),
    "credit for an unknown account": Mistake(("account", "credit", NEW, "5.00"), (NEW, "cadenza account list")),
    "opening credit in words": Mistake(_create(NEW, "--credit", "abc"), ("'abc'", "5.00")),
    "taken address": Mistake(_create(EMAIL.upper()), (f"an account for {EMAIL} already",)),
    "not an address": Mistake(_create("nobody"), ("name@example.org",)),
    "short password": Mistake(_create(NEW), ("8 to 1024 characters",), given="1234567\n"),
    "unknown class": Mistake(_create(NEW, "--class", "piano"), ("mezzo, forte, fortissimo",)),
    "class without routes": Mistake(
        _create(NEW, "--class", "mezzo"),
        ("'mezzo' has no routes in the config", "choose one of forte, fortissimo."),
        TWO_CLASSES_TOML,
    ),
    "key for an unknown account": Mistake(("key", "create", "--account", NEW), (NEW, "cadenza account list")),
    "unknown scope": Mistake(_key("--scope", "models", "--scope", "admin"), ("'admin'", "inference, models, usage")),
    "unknown expiry": Mistake(_key("--expires", "31"), ("'31'", "30, 90, 365, never")),
    "unknown key": Mistake(("key", "revoke", "key_unknown"), ("'key_unknown'", "cadenza key list")),
    "mistyped key": Mistake(("key", "revoke", MISTYPED_KEY), (f"{MISTYPED_KEY[:12]}…",)),
    "missing config": Mistake(("account", "list", "--config", "missing.toml"), ("missing.toml", "cannot be read")),
    "several in the config": Mistake(
        ("account", "list"),
        ("3 problems", 'server.prot: unknown key; did you mean "port"?', "store.url", "burst"),
        SEVERAL_TOML,
    ),
    "serve with several": Mistake(("serve", "--port", "0"), ("3 problems", "line 3", "line 5", "line 7"), SEVERAL_TOML),
    "provider without retention": Mistake(("serve", "--port", "0"), ("providers.acme.retention",), NO_RETENTION_TOML),
    "provider without its key": Mistake(("serve", "--port", "0"), ("ACME_TEST_KEY is unset",), NO_SECRET_TOML),
}
MISUSED = {
    "unknown option": (*_credit("-5"), "--nots", "--nots"),
    "no account named": ("key", "create", "--account"),
}


@pytest.fixture(scope="module")
def folder(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(made, tmp_path_factory.mktemp("mistakes"), dirs_exist_ok=True))


@pytest.fixture(scope="module")
def answers(folder: Path) -> dict[str, Done]:
    """What each mistake printed. Every command runs once, on one store."""
    return {name: _make(folder, name) for name in MISTAKES}


def _make(folder: Path, name: str) -> Done:
    mistake, options = MISTAKES[name], []
    if mistake.toml:
        config = folder / f"{name.replace(' ', '-')}.toml"
        config.write_text(mistake.toml)
        options = ["--config", str(config)]
    in_a_process = "serve" in mistake.args  # if it were not refused, it would never return
    return (run if in_a_process else run_here)(folder, *mistake.args, *options, given=mistake.given)


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_is_explained(answers: dict[str, Done], name: str) -> None:
    """The command exits with 1, a start with a wrong config with 78, and says what is wrong, without a traceback."""
    done, is_wrong_config = answers[name], "serve" in MISTAKES[name].args and MISTAKES[name].toml
    assert done.returncode == (CONFIG_EXIT if is_wrong_config else 1), done.stdout
    assert done.stdout == ""
    assert done.stderr.startswith("cadenza: "), done.stderr[-500:]
    assert "Traceback" not in done.stderr
    assert [text for text in MISTAKES[name].says if text not in done.stderr] == [], done.stderr


def test_key_is_not_repeated(answers: dict[str, Done]) -> None:
    """An error message shows no more than the prefix of something that looks like a key."""
    assert MISTYPED_KEY[:13] not in answers["mistyped key"].stderr


def test_nothing_was_changed(answers: dict[str, Done], folder: Path) -> None:
    """After all these mistakes the account, its balance and its keys are as before."""
    assert len(answers) == len(MISTAKES)
    (account,) = json.loads(run_here(folder, "account", "list", "--json").stdout)
    assert (account["email"], account["balance"]) == (EMAIL, "5.00")
    keys = json.loads(run_here(folder, "key", "list", "--account", EMAIL, "--json").stdout)
    assert [(key["name"], key["state"]) for key in keys] == [("laptop", "active"), ("ci", "active")]


@pytest.mark.parametrize("name", MISUSED)
def test_misuse_is_explained(tmp_path: Path, name: str) -> None:
    """A command line that cannot be parsed exits with 2, names the wrong word and shows the usage."""
    *args, at_fault = MISUSED[name]
    done = run(tmp_path, *args)
    assert done.returncode == 2
    assert "Usage: cadenza" in done.stderr
    assert at_fault in done.stderr
    assert "Traceback" not in done.stderr
