"""An environment without extras, and every command of the command line.

The environment is a folder of links to the packages that the core asks for, as the wheel alone would bring them.
"""

import os
import tomllib
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import click
from packaging.requirements import Requirement

from cadenza.cli import app
from cadenza.terminal.lazy import LazyGroup
from tests.environment import environment

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ENDING = ("--once", "--password-stdin", "--yes")  # options with which a command ends, and asks nothing
VALUES = {
    "account": "owner@example.org",
    "amount": "0.01",
    "candidate": "acme/larger",
    "class_id": "forte",
    "client": "codex",
    "duration": "10m",
    "email": "owner@example.org",
    "month": "2026-01",
    "provider": "acme",
    "route": "acme/large",
}


def packages_of(requirements: list[str], extras: frozenset[str] = frozenset()) -> set[str]:
    """The top-level files and folders of these packages, and of all that they ask for."""
    found = set[str]()
    for requirement in map(Requirement, requirements):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            package = distribution(requirement.name)
            found |= {str(file.parts[0]) for file in package.files or ()} - {"..", "__pycache__"}
            found |= packages_of(package.requires or [], frozenset(requirement.extras))
    return found


def make_bare(folder: Path) -> dict[str, str]:
    """Fill the folder. The variables with which `python -S` has only what is in it."""
    site = Path(str(distribution("click").locate_file("")))
    for name in {*packages_of(PROJECT["dependencies"]), *(path.name for path in site.glob("cadenza-*.dist-info"))}:
        (folder / name).symlink_to(site / name)
    return environment(PYTHONPATH=os.pathsep.join([str(ROOT / "src"), str(folder)]))


def commands(group: click.Group = app, *before: str) -> Iterator[tuple[str, ...]]:
    """Every command as it is typed, with a value for all that it requires."""
    for name in group.commands:
        command = group.load(name) if isinstance(group, LazyGroup) else group.commands[name]
        if isinstance(command, click.Group):
            yield from commands(command, *before, name)
        else:
            yield (*before, name, *_arguments(command))


def _arguments(command: click.Command) -> Iterator[str]:
    for parameter in command.params:
        option = () if isinstance(parameter, click.Argument) else parameter.opts[:1]
        if {*ENDING} & {*option}:
            yield from option
        elif parameter.required and isinstance(parameter.type, click.Choice):
            yield from (*option, parameter.type.choices[-1])
        elif parameter.required:
            yield from (*option, VALUES.get(str(parameter.name), "x"))
