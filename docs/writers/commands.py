"""docs/commands.md, from the help of the commands."""

import re
from collections.abc import Iterator
from itertools import chain, starmap

import click

from cadenza.cli import HEADINGS, app
from cadenza.terminal.console import CONFIG
from cadenza.terminal.lazy import LazyGroup

CONFIG_OPTION = {"settings", "config"}  # its parameter; the introduction describes it
RANGE = re.compile(r"(.+)<=x<=(.+)")
PAGE = """\
# Commands

`make docs` writes this page from the help of the commands, which `cadenza COMMAND --help` prints too.

- Every command works beside a running service, which sees the effect with its next request. Every change is in the
  [audit log](platform/operator.md#the-audit-log).
- `--config FILE` names the config file; by default it is {default}. Only {without} lack it.
- Results are on standard output, everything else is on standard error. A link, a key, the id of a note and the codes
  of vouchers are alone on standard output.
- An error that you can fix is one sentence and exit code 1. For `cadenza serve`, a mistake in the config is exit code
  78.
- A command that only reads neither creates nor migrates a store: if the store is missing or has an older schema, the
  command says so. These are all `list` commands, `class show`, `class history`, `class diff`, `class price` without
  options, `usage`, `margin`, `reconcile`, `report month`, `ledger check`, `ledger verify`, `ledger export`, `tail`,
  `explain`, `backup` and `doctor` (which with `--try` writes how many [trials](months.md#compare-a-bill)
  it made). `retention audit` has a store of its own. Every other command migrates a SQLite store first.

## Spans of time

`--from`, `--to` and `--month` take dates (`2026-10-01`), times in RFC 3339 (`2026-10-01T08:00:00Z`), or a month
(`2026-10`). All are UTC, and days and months begin at midnight UTC. A date as `--to` includes that day; a time is the
moment at which the span ends. `--from 2026-10-01 --to 2026-10-31` and `--month 2026-10` are the same. An entry
belongs to the time at which it was made, a charge to the end of its request, and usage to the start of a request. The
pages of statement and usage take the same spans.
"""
MORE = {  # what explains the commands of a section
    "Start": "[Getting started](start.md), [try a provider](routes.md#try-a-provider)",
    "Accounts and keys": "[Your first team](guides/first-team.md), [keys](platform/keys.md), [accounts](platform.md)",
    "Money": "[Money](money.md), [months](months.md), [vouchers](platform/credit.md#vouchers)",
    "Models": "[Routes](routes.md), [evaluation](evaluation.md)",
    "Watch": "[Monitor](monitor.md), [the audit log](platform/operator.md#the-audit-log)",
    "Maintain": "[Runbook](runbook.md), [Postgres](parts/postgres.md), [the retention audit](parts/retention.md)",
}

Found = tuple[str, click.Command]


def commands_page() -> str:
    found = {
        heading: [one for name in section.split() for one in _commands(app, name)]
        for heading, section in HEADINGS.items()
    }
    every = [one for section in found.values() for one in section]
    page = PAGE.format(
        default=CONFIG["show_default"],
        without=", ".join(f"`{name}`" for name, it in every if not {one.name for one in it.params} & CONFIG_OPTION),
    )
    parts = [
        [f"\n## {heading}\n\n{MORE[heading]}.\n", *starmap(_section, section)] for heading, section in found.items()
    ]
    return page + "".join(chain.from_iterable(parts))


def _commands(group: click.Group, name: str, before: str = "") -> Iterator[Found]:
    """The command of this name or, if it is a group, those in it."""
    command = group.load(name) if isinstance(group, LazyGroup) else group.commands[name]
    if not isinstance(command, click.Group):
        yield f"{before}{name}", command
        return
    for inner in sorted(command.commands):
        yield from _commands(command, inner, f"{before}{name} ")


def _section(name: str, command: click.Command) -> str:
    context = click.Context(command, info_name=f"cadenza {name}")
    usage = " ".join([f"cadenza {name}", *command.collect_usage_pieces(context)])
    paragraphs = [" ".join(lines.split()) for lines in (command.help or "").split("\n\n")]
    options = [one for one in command.params if isinstance(one, click.Option) and one.name not in CONFIG_OPTION]
    rows = "".join(_row(option, context) for option in options)
    table = f"\n| option | default | meaning |\n|---|---|---|\n{rows}" if rows else ""
    help_text = "\n\n".join(filter(None, paragraphs))
    return f"\n### cadenza {name}\n\n```text\n{usage}\n```\n\n{help_text}\n{table}"


def _row(option: click.Option, context: click.Context) -> str:
    record = option.get_help_record(context)
    assert record, f"{option.name} has no help"
    extra = option.get_help_extra(context)
    default = extra.get("required") or extra.get("default", "").strip("()")
    numbers = RANGE.fullmatch(extra.get("range", ""))
    meaning = f"{option.help}{f' {numbers[1]} to {numbers[2]}.' if numbers else ''}"
    cells = [cell.replace("|", "\\|") for cell in (f"`{record[0]}`", default, meaning)]
    return f"| {' | '.join(cells)} |\n"
