"""cadenza class suite check."""

from collections import Counter
from pathlib import Path

import click

from cadenza.parts.evaluation.suite import load_suite
from cadenza.terminal.console import json_option, print_json
from cadenza.terminal.lazy import CommandGroup


@click.group(cls=CommandGroup)
def suite() -> None:
    """Suites: files of cases with which classes are evaluated."""


@suite.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
@json_option
def check(file: Path | None, as_json: bool) -> None:
    """Check a suite, and count its cases by tag and by grader. Without FILE: the starter suite."""
    loaded = load_suite(file)
    tags = Counter(tag for case in loaded.cases for tag in case.tags)
    kinds = Counter(str(grader.__struct_config__.tag) for case in loaded.cases for grader in case.graders)
    if as_json:
        counts = {"suite": loaded.name, "digest": loaded.digest.hex(), "cases": len(loaded.cases)}
        print_json([{**counts, "tags": dict(sorted(tags.items())), "graders": dict(sorted(kinds.items()))}])
        return
    click.echo(f"{loaded.name}: {len(loaded.cases)} cases, digest {loaded.digest.hex()[:12]}")
    click.echo("By tag: " + ", ".join(f"{name} {count}" for name, count in sorted(tags.items())))
    click.echo("By grader: " + ", ".join(f"{name} {count}" for name, count in sorted(kinds.items())))
