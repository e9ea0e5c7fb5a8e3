"""A group of commands that imports a command only to run it, or to show the help of that command."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click


class LazyGroup(click.Group):
    """`places` has, by name, where a command is defined below cadenza.cli, and its sentence in the help of the group.

    The help and the completion of the group see stubs with that sentence.
    """

    def __init__(self, *, places: Mapping[str, tuple[str, str]], **options: Any) -> None:  # noqa: ANN401 click's own
        super().__init__(**options)
        self._places = {name: place for name, (place, _) in places.items()}
        for name, (_, sentence) in places.items():
            self.add_command(click.Command(name, short_help=sentence))

    def load(self, name: str) -> click.Command:
        """The command itself."""
        if name not in self._places:
            return self.commands[name]
        module, _, attribute = self._places[name].rpartition(".")
        command: click.Command = getattr(import_module(f"cadenza.cli.{module}"), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, self.load(name) if name and command else command, rest
