"""Everything that the store has of one account: which columns its owner gets, what each means, and what is left out.

All of it derives from the schema. A column of an exported table without a meaning fails here, when it is imported.
"""

from collections.abc import AsyncIterator
from typing import Any

from sqlalchemy import Boolean, ColumnElement, Table, bindparam, case, literal_column, select, tuple_

from cadenza.store import schema
from cadenza.store.columns import ABOUT, MEANING, Exported, LeftOut, Meaning
from cadenza.store.statements import Statement
from cadenza.store.store import Row, Store

PAGE = 50  # what is made of them takes about a millisecond


class ExportedTable:
    """A table, its file in the archive, and its columns. `order` are columns that tell its rows apart."""

    def __init__(self, table: Table, about: Exported) -> None:
        ids = [column.name for column in table.primary_key]
        by = [about.by] if about.by else []
        meanings = {column.name: meaning_of(column) for column in table.c if column.name != about.owner or column.info}
        self.table, self.file, self.about, self.owner = table, about.file, about.what, about.owner
        self.fields = {name: one.words for name, one in meanings.items() if one.is_shown}
        self.left_out = {name: one.words for name, one in meanings.items() if not one.is_shown}
        self.order = [*by, *([name for name in ids if name != about.owner] or ids)]

    def _column(self, name: str) -> ColumnElement[Any]:
        """The address of somebody else is not this person's data."""
        column = self.table.c[name]
        if self.table is not schema.audit_events or name != "actor":
            return column
        others = select(schema.accounts.c.email).where(schema.accounts.c.id != bindparam("account"))
        return case((column.in_(others), literal_column("'an operator'")), else_=column).label(name)

    def first_page(self) -> Statement:
        columns = [self._column(name) for name in self.fields]
        order = [self.table.c[name] for name in self.order]
        of_account = self.table.c[self.owner] == bindparam("account")
        return Statement(select(*columns, *order).where(of_account).order_by(*order).limit(bindparam("count")))

    def next_page(self) -> Statement:
        """After the row whose order columns have these values."""
        order = [self.table.c[name] for name in self.order]
        last = [bindparam(f"last_{name}", type_=self.table.c[name].type) for name in self.order]
        first = self.first_page().core
        return Statement(first.where(tuple_(*order) > tuple_(*last)))  # type: ignore[attr-defined]

    def is_flag(self, column: str) -> bool:
        return isinstance(self.table.c[column].type, Boolean)


def meaning_of(column: ColumnElement[Any]) -> Meaning:
    assert MEANING in column.info, f"say in the schema what {column} means to the owner of an account"
    return column.info[MEANING]  # type: ignore[no-any-return]


_ABOUT = {table: table.info[ABOUT] for table in schema.metadata.tables.values()}
EXPORTED = [ExportedTable(table, about) for table, about in _ABOUT.items() if isinstance(about, Exported)]
LEFT_OUT = {table.name: about.what for table, about in _ABOUT.items() if isinstance(about, LeftOut)}


async def read_pages(store: Store, exported: ExportedTable, account_id: str) -> AsyncIterator[list[Row]]:
    """The rows of an account by `fields`, a page at a time."""
    count = len(exported.fields)
    values: dict[str, Any] = {"account": account_id, "count": PAGE}
    rows = await store.report(exported.first_page(), values, account_id)
    following = exported.next_page()
    while rows:
        yield [row[:count] for row in rows]
        if len(rows) < PAGE:
            return
        last = dict(zip(exported.order, rows[-1][count:], strict=True))
        place = {f"last_{name}": value for name, value in last.items()}
        rows = await store.report(following, {**values, **place}, account_id)
