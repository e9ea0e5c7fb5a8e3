"""cadenza classes suite check | import."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cadenza.cli.console import json_option, print_json, say

if TYPE_CHECKING:
    from cadenza.evaluation.imports import Source

SOURCES = ("promptfoo", "openai-evals", "lm-eval")


@click.group()
def suite() -> None:
    """Suites: files of cases with which classes are evaluated."""


@suite.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
@json_option
def check(file: Path | None, as_json: bool) -> None:
    """Check a suite, and count its cases by tag and by grader. Without FILE: the starter suite."""
    from cadenza.evaluation.suite import load_suite  # noqa: PLC0415 import time

    loaded = load_suite(file)
    tags = Counter(tag for case in loaded.cases for tag in case.tags)
    kinds = Counter(str(grader.__struct_config__.tag) for case in loaded.cases for grader in case.graders)
    cheap = sum(case.is_cheap for case in loaded.cases)
    if as_json:
        counts = {"suite": loaded.name, "digest": loaded.digest.hex(), "cases": len(loaded.cases), "cheap": cheap}
        print_json([{**counts, "tags": dict(sorted(tags.items())), "graders": dict(sorted(kinds.items()))}])
        return
    click.echo(f"{loaded.name}: {len(loaded.cases)} cases, {cheap} of them cheap, digest {loaded.digest.hex()[:12]}")
    click.echo("By tag: " + ", ".join(f"{name} {count}" for name, count in sorted(tags.items())))
    click.echo("By grader: " + ", ".join(f"{name} {count}" for name, count in sorted(kinds.items())))


@suite.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--from", "source", type=click.Choice(SOURCES), help="The form of the file. Default: by its content.")
@click.option("--output", metavar="FILE", type=click.Path(path_type=Path), help="Default: the standard output.")
def import_file(file: Path, source: "Source | None", output: Path | None) -> None:
    """Convert a suite of promptfoo (YAML), OpenAI evals (JSONL) or lm-eval (logged samples).

    What cannot be converted is listed with its reason.
    """
    from cadenza.evaluation.imports import import_suite  # noqa: PLC0415 import time

    imported = import_suite(file, source)
    data = b"".join(line + b"\n" for line in imported.lines)
    if output:
        try:
            with output.open("xb") as written:
                written.write(data)
        except FileExistsError:
            raise ValueError(f"{output} exists already; name another file") from None
        except OSError as error:
            raise ValueError(f"{output} cannot be written: {error.strerror}") from None
    else:
        click.echo(data.decode(), nl=False)
    for one in imported.left_out:
        say(f"left out: {one.place}: {one.reason}")
    say(f"{len(imported.lines)} cases converted, {len(imported.left_out)} left out.")
