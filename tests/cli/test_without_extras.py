"""The wheel alone, without its extras: every command works, or says in a sentence which extra it needs."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from packaging.requirements import Requirement

from cadenza.parts import PARTS
from tests.bare import PROJECT, commands, make_bare, packages_of
from tests.cli.conftest import PASSWORD
from tests.loopback import LoopbackUpstream
from tests.raw_client import RawClient
from tests.service import END_S, Deployment, Serving
from tests.service_config import classes_spec

# Each command has a copy of the folder that the program is started in.
RUN_ALL = """
import contextlib, io, json, os, shutil, sys
from cadenza.cli import main

folder = os.getcwd()
for number, (args, given) in enumerate(json.loads(sys.argv[1])):
    os.chdir(shutil.copytree(folder, f"{folder}-{number}"))
    sys.stdin, out, errors, code = io.StringIO(given), io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            main(args)
        except SystemExit as end:
            code = end.code or 0
        except BaseException as error:
            code, errors = 70, io.StringIO(repr(error))
    print(json.dumps({"args": args, "code": code, "out": out.getvalue(), "errors": errors.getvalue()}))
"""
SERVE = "from cadenza.cli import main; main(['serve', '--port', '0'])"
CONFIG = """
[providers.acme]
kind = "openai"
base_url = "http://127.0.0.1:9/v1"
retention = "zero"

[[classes.forte.routes]]
provider = "acme"
model = "large"
"""
NOT_RUN = {  # here: only their help
    "serve": "it does not end",
    "model install": "it installs packages",
    "retention audit": "it takes long",
}
NEEDED = {
    "migrate --from sqlite:///./data/cadenza.db --to postgresql://u:p@127.0.0.1/x": "postgres",
    "migrate --config postgres.toml": "postgres",
    "account list --config postgres.toml": "postgres",
    "serve --config postgres.toml": "postgres",
    "serve --config valkey.toml": "valkey",
    "serve --config traced.toml": "otlp",
    "class suite check": "evaluation",
    "class suite check plain.jsonl": "evaluation",
    "memory list": "grounding",
    "account link operator": "site",
    "class evaluate forte --candidate acme/larger --suite plain.jsonl": "evaluation",
}
CONFIGS = {
    "postgres.toml": '[store]\nurl = "postgresql://u:p@127.0.0.1/x"\n',
    "valkey.toml": '[shared_state]\nurl = "valkey://127.0.0.1:6379/0"\n',
    "traced.toml": '[observe]\notlp_url = "http://127.0.0.1:4318"\n',
}


class Ran(msgspec.Struct):
    """What a command did."""

    args: list[str]
    code: int
    out: str
    errors: str


def run_all(folder: Path, bare: dict[str, str], asked: list[list[str]]) -> list[Ran]:
    """Run each command in the same process, and in a copy of the folder."""
    orders = json.dumps([(args, PASSWORD + "\n") for args in asked])
    command = [sys.executable, "-S", "-c", RUN_ALL, orders]
    done = subprocess.run(command, cwd=folder, env=bare, capture_output=True, text=True, timeout=END_S, check=False)
    assert done.returncode == 0, done.stderr
    return [msgspec.json.decode(line, type=Ran) for line in done.stdout.splitlines()]


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "packages").mkdir()
    return make_bare(tmp_path / "packages")


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """An account, a key, a config with a model that does not answer, and files for commands that read one."""
    folder = shutil.copytree(made, tmp_path / "folder")
    for name, text in {**CONFIGS, "cadenza.toml": ""}.items():
        (folder / name).write_text(text + CONFIG)
    (folder / "x").write_text("day,model,cost\n2026-01-01,large,1.00\n")
    (folder / "plain.jsonl").write_text(
        '{"id": "a", "tags": ["a"], "messages": [{"role": "user", "content": "A"}], '
        '"graders": [{"kind": "exact", "texts": ["a"]}]}\n'
    )
    return folder


def test_each_extra_has_its_modules() -> None:
    """The modules that are named for each extra are what its requirements bring, and `all` has the usual extras."""
    named = {part.name: part.packages for part in PARTS}
    named["embedded"] = ("xllamacpp",)  # without it the part works: its command installs the model
    extras = dict(PROJECT["optional-dependencies"])
    assert re.findall(r"\w+", extras.pop("all")[0]) == ["cadenza", *sorted(named.keys() - {"embedded", "otlp"})]
    assert extras.keys() == named.keys()
    required = {Requirement(one).name for one in PROJECT["dependencies"]}
    for extra, modules in named.items():
        assert {module.partition(".")[0] for module in modules} <= packages_of(extras[extra])
        assert not {Requirement(one).name for one in extras[extra]} & required
        assert not modules or {*modules} - packages_of(PROJECT["dependencies"]), "it would always seem installed"
        assert len(modules) == len(extras[extra])


def test_every_command_works_without_extras(folder: Path, bare: dict[str, str]) -> None:
    """It works, refuses what it was given, or names the missing extra: no module is missing, and nothing crashes."""
    asked = [[*args, "--help"] if {args[0], " ".join(args[:2])} & {*NOT_RUN} else [*args] for args in commands()]
    assert len(asked) > 50
    ran = run_all(folder, bare, asked)
    assert [one for one in ran if one.code not in {0, 1} and "needs the extra" not in one.errors] == []


def test_what_needs_an_extra_names_it(folder: Path, bare: dict[str, str]) -> None:
    """A config, a move or a suite that needs a missing extra is refused with how to install it."""
    for ran, extra in zip(run_all(folder, bare, [args.split() for args in NEEDED]), NEEDED.values(), strict=True):
        assert (ran.code != 0) == bool(extra), ran
        assert not extra or f"pip install 'cadenza[{extra}]'" in ran.errors.splitlines()[-1], ran


def test_a_gateway_serves_without_extras(upstream: LoopbackUpstream, bare: dict[str, str]) -> None:
    """A service on SQLite answers a chat; instead of a page it says what would install them."""
    with Deployment(classes_spec(upstream.base_url)) as deployment:
        printed, command = deployment.folder / "printed", [sys.executable, "-S", "-c", SERVE]
        with (
            printed.open("wb") as out,
            subprocess.Popen(
                command, cwd=deployment.folder, env=bare, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            ) as process,
        ):
            try:
                serving = Serving(process, printed)
                serving.wait_until_ready()
                assert RawClient(serving.port, deployment.key).chat().status == 200
                status, body = serving.get("/")
                assert (status, "pip install 'cadenza[site]'" in body) == (404, True)
                assert not re.search("Pages|Operator", printed.read_text())
            finally:
                process.terminate()
                assert process.wait(END_S) == 0
