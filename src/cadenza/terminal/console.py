"""What the commands share: options, questions, and lists as a table or as JSON. It imports neither config nor store."""

import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from itertools import pairwise
from types import TracebackType
from typing import Any

import click
import msgspec

from cadenza import clock
from cadenza.core.formats import read_field, rfc3339

CONFIG: dict[str, Any] = {
    "metavar": "FILE",
    "help": "The config file.",
    "show_default": "$CADENZA_CONFIG, else ./cadenza.toml, else the embedded model",
}
config_option = click.option("--config", **CONFIG)
reference_option = click.option(
    "--reference",
    metavar="TEXT",
    default="",
    show_default="a new one",
    help="Makes the command idempotent: a repetition with the same reference changes nothing.",
)
from_option = click.option("--from", "start", metavar="TIME", help="A date, like 2026-10-01, or RFC 3339; UTC.")
to_option = click.option("--to", "end", metavar="TIME", help="The same. A date includes that day.")
month_option = click.option("--month", metavar="YYYY-MM", help="A whole month, UTC, instead of --from and --to.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
now_ms = clock.now_ms

COLUMN_GAP = "  "
Decorated = Callable[..., Any]
NEGATIVE_NUMBER = re.compile(r"-\.?\d.*")


class AmountCommand(click.Command):
    """A command whose last argument is an amount: `-5` is read as a negative number, not as an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            return super().parse_args(ctx, args)
        words: list[str] = []
        amounts: list[str] = []
        for before, word in pairwise(["", *args]):
            is_amount = NEGATIVE_NUMBER.fullmatch(word) and not before.startswith("--")
            (amounts if is_amount else words).append(word)
        return super().parse_args(ctx, [*words, "--", *amounts])


def options(*declared: Decorated) -> Decorated:
    """Arguments and options that several commands have, as one decorator."""
    return lambda command: reduce(lambda decorated, option: option(decorated), reversed(declared), command)


def print_place(kind: type[BaseException], _error: BaseException, trace: TracebackType | None) -> None:
    """For an error that is a bug: where it was raised and its type. Its text could quote content."""
    traceback.print_tb(trace)
    say(f"cadenza: internal error ({kind.__qualname__}). Its text is left out, because it could quote content.")


def say(line: str) -> None:
    """Print to standard error: standard output is for results only."""
    click.echo(line, err=True)


def say_repeated(earlier_at: int) -> None:
    say(f"This reference was used at {rfc3339(earlier_at)}, and takes effect once: nothing was changed now.")


def ask(
    question: str, no_terminal: str, default: str | None = None, *, is_secret: bool = False, is_new: bool = False
) -> str:
    """What is typed at the terminal; a secret is hidden, a new one typed twice. ValueError if there is no terminal."""
    shows_default, is_confirmed = bool(default), is_secret and is_new
    if is_secret and not sys.stdin.isatty():
        raise ValueError(no_terminal)  # Python would read it visibly, with a warning
    try:
        return str(click.prompt(question, default, is_secret, is_confirmed, show_default=shows_default, err=True))
    except click.Abort:
        if sys.stdin.isatty():
            raise  # Ctrl-C
        raise ValueError(no_terminal) from None


def to_row(source: object, *names: str) -> dict[str, object]:
    """These fields of a record, for a list."""
    return {name: read_field(source, name) for name in names}


def print_json(rows: Sequence[Mapping[str, object]]) -> None:
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(rows), indent=2).decode() + "\n")


def print_table(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> None:
    """Aligned columns under a bold header. Nothing is cut or wrapped, so every value can be copied."""
    cells = [list(columns), *([_cell(row[column]) for column in columns] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for number, line in enumerate(cells):
        padded = COLUMN_GAP.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        click.secho(padded, bold=number == 0)


def print_list(rows: Sequence[Mapping[str, object]], columns: Sequence[str], *, as_json: bool) -> None:
    if as_json:
        print_json(rows)
    else:
        print_table(rows, columns)


def _cell(value: object) -> str:
    if value is None:
        return "–"
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
