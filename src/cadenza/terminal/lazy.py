"""Groups of commands: the help of a group has their whole sentences, and may import none of them."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from cadenza import parts

WHOLE = 1000  # characters of a sentence: more than any has
GONE = {  # what release 0.1.0 had, as the error names it, and what to do now
    "such command 'watch'": "There is no watch now: run 'cadenza class evaluate' each night instead.",
    "such command 'index'": "There is no search of local documents now: [grounding.search] names an engine of the web.",
    "such option '--deep'": "Try a model with 'cadenza doctor --try', or evaluate it: 'cadenza class evaluate'.",
    "such option '--share'": "There are no canaries now: a promotion serves every account.",
}

Place = tuple[str, str]


class CommandGroup(click.Group):
    """Click's own help cuts the sentences of the commands where the line ends; here they are wrapped."""

    def __init__(self, *, sections: Mapping[str, str] | None = None, **options: Any) -> None:  # noqa: ANN401 click's own
        """`sections` has the names of commands by heading. Without it all are under one, in alphabetical order."""
        super().__init__(**options)
        self._sections = sections

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections = self._sections or {"Commands": " ".join(self.list_commands(ctx))}
        width = max(map(len, self.commands))
        for heading, names in sections.items():
            with formatter.section(heading):
                rows = [(name.ljust(width), self.commands[name].get_short_help_str(WHOLE)) for name in names.split()]
                formatter.write_dl(rows)


class LazyGroup(CommandGroup):
    """`places` has, by name, where a command is defined below cadenza.cli, and its sentence in the help of the group.

    Commands of parts join the group whose `words` they begin with. A command is imported only to run it, or to show its
    own help: the help and the completion of the group see stubs.
    """

    def __init__(self, *, places: Mapping[str, Place], words: str = "", **options: Any) -> None:  # noqa: ANN401 click's own
        super().__init__(**options)
        self._words = words
        self._places = {name: f"cadenza.cli.{place}" for name, (place, _) in places.items()}
        sentences = {name: sentence for name, (_, sentence) in places.items()}
        for part in parts.having("commands"):
            for command, sentence in part.commands.items():
                group, _, name = command.rpartition(" ")
                if group == words:
                    self._places[name] = f"cadenza.parts.{part.name}.commands.{command.replace(' ', '_')}"
                    sentences[name] = sentence
        for name, sentence in sentences.items():
            self.add_command(click.Command(name, short_help=sentence))

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """One that a part replaces is left out."""
        if (name or cmd.name) not in self.commands:
            super().add_command(cmd, name)

    def load(self, name: str) -> click.Command:
        """The command itself."""
        if name not in self._places:
            return self.commands[name]
        module, _, attribute = self._places[name].rpartition(".")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            if isinstance(error, click.NoSuchOption) and error.ctx:
                words = error.ctx.command_path.partition(" ")[2]
                if part := parts.find(words):  # which replaces this command, and adds options to it
                    part.require()
            for name, advice in GONE.items():
                if name in error.message and advice not in error.message:  # an inner group has not said it
                    raise click.UsageError(f"{error.message} {advice}", error.ctx) from None
            raise

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands and (part := parts.find(f"{self._words} {args[0]}".strip())):
            part.require()
        name, command, rest = super().resolve_command(ctx, args)
        return name, self.load(name) if name and command else command, rest
