"""The page about privacy names every table of the store once, and the periods that the config has by default."""

import re

import msgspec

from cadenza.core.retention import USUAL_LIMITS
from cadenza.store.schema import metadata
from tests.docs.markdown import ROOT

PAGE = (ROOT / "docs" / "privacy.md").read_text()
UNITS = {"days": "days", "s": "seconds"}


def test_every_table_is_named_once() -> None:
    """A new table needs a line that says what is in it and for how long."""
    section = PAGE.partition("## What is stored\n")[2].partition("\nElsewhere:")[0]
    cells = re.findall(r"^\| (`[^|]+) \|", section, re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", " ".join(cells))) == sorted(metadata.tables)


def test_the_periods_are_those_of_the_config() -> None:
    """Each setting is named, with its default if it has one."""
    for name, value in msgspec.structs.asdict(USUAL_LIMITS).items():
        unit = UNITS[name.rpartition("_")[2]]
        assert (f"`{name}`, {value} {unit}" if value else f"no limit, or `{name}`") in PAGE, name
