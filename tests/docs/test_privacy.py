"""The page about privacy has the table that the schema makes, and the periods that the config has by default."""

import msgspec
from docs.writers.privacy import with_table

from cadenza.core.retention_limits import USUAL_LIMITS
from tests.docs.markdown import ROOT

PAGE = (ROOT / "docs" / "privacy.md").read_text()
UNITS = {"days": "days", "s": "seconds"}


def test_the_table_is_that_of_the_schema() -> None:
    """`make docs` was run after the last change of the schema."""
    assert with_table(PAGE) == PAGE


def test_the_periods_are_those_of_the_config() -> None:
    """Each setting is named, with its default if it has one."""
    for name, value in msgspec.structs.asdict(USUAL_LIMITS).items():
        unit = UNITS[name.rpartition("_")[2]]
        assert (f"`{name}`, {value} {unit}" if value else f"no limit, or `{name}`") in PAGE, name
