"""The table of docs/privacy.md, from the schema."""

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from sqlalchemy import Table

from cadenza.store.columns import ABOUT, MEANING, Exported, LeftOut, Meaning, OfService, WhenErased
from cadenza.store.schema import metadata

PAGE = Path("docs/privacy.md")
HEADER = "| table | what is in it | until | erasing the account | the owner's archive |\n|---|---|---|---|---|\n"
ORDER = (Exported, LeftOut, OfService)


def with_table(page: str) -> str:
    """The page with the table as the schema has it now."""
    tables = sorted(metadata.tables.values(), key=lambda table: ORDER.index(type(table.info[ABOUT])))
    before, _, rest = page.partition(HEADER)
    _, _, after = rest.partition("\n\n")
    return f"{before}{HEADER}{''.join(map(_row, tables))}\n{after}"


def _row(table: Table) -> str:
    about = table.info[ABOUT]
    what = about.what[0].upper() + about.what[1:].rstrip(".")
    meanings = {column.name: column.info[MEANING] for column in table.c if MEANING in column.info}
    cells = [f"`{table.name}`", what, about.kept, "", ""]
    if not isinstance(about, OfService):
        overwritten = _names(name for name, one in meanings.items() if one.erased is not WhenErased.KEPT)
        cells[3] = "removes the rows" if about.removed else f"overwrites {overwritten}" if overwritten else "keeps them"
        cells[4] = f"`{about.file}`{_left_out(meanings)}" if isinstance(about, Exported) else "left out"
    return f"| {' | '.join(cells)} |\n"


def _left_out(meanings: dict[str, Meaning]) -> str:
    """The columns that the archive lacks, by their reason."""
    by_reason = sorted((one.words, name) for name, one in meanings.items() if not one.is_shown)
    groups = groupby(by_reason, lambda pair: pair[0])
    parts = [f"{_names(name for _, name in pairs)} ({reason})" for reason, pairs in groups]
    return f" without {', '.join(parts)}" if parts else ""


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
