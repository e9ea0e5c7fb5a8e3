"""What a command loads, its help, the version and shell completion.

Start-up time is measured by what is imported, which does not depend on the machine.
"""

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from cadenza.cli import app
from cadenza.terminal.lazy import LazyGroup
from tests.cli.conftest import EMAIL
from tests.cli.program import run, run_here, run_other

LIST_MODULES = """
import json, sys
from cadenza.cli import main
loaded = []
for args in json.loads(sys.argv[1]):
    try:
        main(args)
    except SystemExit as end:
        assert not end.code, args
    loaded.append(sorted(sys.modules))
print(json.dumps(loaded), file=sys.stderr)
"""
LIGHT = re.compile(r"cadenza(\.(cli|clock|core|parts|process|terminal)(\..*)?)?")
SLOW_LIBRARIES = {"asyncio", "prometheus_client", "pydantic", "rich", "sqlalchemy", "uvloop"}
SERVICE = re.compile(
    r"cadenza\.(app|gateway|http|routing|server|web)(\..*)?|cadenza\.upstreams\.(?!(base|dialects|faults)$).*|httptools|uvloop|xllamacpp|rich"
)
HELP_COMMANDS = [("--help",), ("serve", "--help"), ("--version",)]
STORE_COMMANDS = [
    ("account", "list"),
    ("account", "credit", EMAIL, "1.00"),
    ("key", "create", "--account", EMAIL),
    ("key", "list", "--account", EMAIL),
    ("connect", "codex"),
    ("usage", "--account", EMAIL),
    ("ledger", "check"),
    ("ledger", "export"),
    ("audit", "list"),
    ("class", "show"),
    ("class", "reload"),
    ("backup", "copy.db"),
]


def modules_after(folder: Path, commands: list[tuple[str, ...]]) -> dict[str, set[str]]:
    """The modules that are loaded after each of these commands, which run in one process."""
    done = run_other([sys.executable, "-c", LIST_MODULES, json.dumps(commands)], folder)
    assert done.returncode == 0, done.stderr
    loaded = json.loads(done.stderr.splitlines()[-1])
    return {" ".join(args): set(names) for args, names in zip(commands, loaded, strict=True)}


def test_help_loads_only_the_command_line(tmp_path: Path) -> None:
    """The help of the program and of serve, and the version, load neither config nor store, and no slow library."""
    for command, loaded in modules_after(tmp_path, HELP_COMMANDS).items():
        assert {name for name in loaded if name.startswith("cadenza") and not LIGHT.fullmatch(name)} == set(), command
        assert loaded & SLOW_LIBRARIES == set(), command


def test_store_commands_do_not_load_the_service(furnished: Path) -> None:
    """A command that only works on the store loads no gateway, upstream, model or HTTP code."""
    for command, loaded in modules_after(furnished, STORE_COMMANDS).items():
        assert {name for name in loaded if SERVICE.fullmatch(name)} == set(), command


def leaves(group: LazyGroup, *before: str) -> Iterator[tuple[str, ...]]:
    """Every group and every command, as it is typed."""
    yield before
    for name in group.commands:
        command = group.load(name)
        subs = list(command.commands) if isinstance(command, click.Group) else []
        yield from leaves(command, *before, name) if isinstance(command, LazyGroup) else [(*before, name)]
        yield from ((*before, name, sub) for sub in subs if not isinstance(command, LazyGroup))


def test_help_is_plain_text(tmp_path: Path) -> None:
    """The help of each command fits a narrow terminal, says how it is used, and contains no markup."""
    commands = [*leaves(app)]
    assert len(commands) > 55
    for words in commands:
        done = run_here(tmp_path, *words, "--help")
        assert done.returncode == 0
        assert done.stdout.startswith(" ".join(("Usage: cadenza", *words)))
        assert max(map(len, done.stdout.splitlines())) <= 80, words
        assert "[/" not in done.stdout
        assert "..." not in done.stdout.partition("\n")[2], words  # no sentence is cut


def test_help_lists_every_command_under_its_heading(tmp_path: Path) -> None:
    """The commands stand where somebody would look for them, the first two named for those who are new."""
    shown = run_here(tmp_path, "--help").stdout
    assert "New here? Run `cadenza init`, then `cadenza serve`." in shown
    headings = re.findall(r"^(\w.*):$", shown, re.MULTILINE)
    assert headings == ["Options", "Start", "Accounts and keys", "Money", "Models", "Watch", "Maintain"]
    assert sorted(re.findall(r"^  ([a-z]+) ", shown, re.MULTILINE)) == sorted(app.commands)


def test_help_shows_defaults(tmp_path: Path) -> None:
    """Help keeps the defaults of options, in brackets."""
    shown = " ".join(run_here(tmp_path, "key", "create", "--help").stdout.split())
    assert "[default: never]" in shown
    assert "[default: (all)]" in shown
    assert "[default: (the rate in the config)]" in shown
    assert "[default: ($CADENZA_CONFIG, else ./cadenza.toml, else the embedded model)]" in shown


def test_help_of_a_group_has_the_sentences_of_its_commands() -> None:
    """The sentence that a group shows without importing a command is the first one of the help of that command."""
    groups = [app]
    for group in groups:
        for name, stub in group.commands.items():
            command = group.load(name)
            assert stub.get_short_help_str(200) == command.get_short_help_str(200), name
            groups += [command] if isinstance(command, LazyGroup) else []
    assert len(groups) > 1


def test_version(tmp_path: Path) -> None:
    """--version prints the name and the version of the package, and nothing else."""
    done = run(tmp_path, "--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"cadenza \d+\.\d+\.\d+\n", done.stdout)


def test_completion_works_in_bash(tmp_path: Path) -> None:
    """The script for bash, evaluated there, completes the beginning of a command."""
    program = Path(sys.executable).parent
    script = (
        'eval "$(_CADENZA_COMPLETE=bash_source cadenza)"; COMP_WORDS=(cadenza le); COMP_CWORD=1; '
        '_cadenza_completion cadenza; echo "${COMPREPLY[@]}"'
    )
    done = run_other(["bash", "-c", script], tmp_path, PATH=f"{program}:{os.environ['PATH']}")
    assert "ledger\n" in done.stdout, done.stderr
