"""Rows that may be many, changed in batches: requests go first, and no transaction is long."""

from collections.abc import AsyncIterator

import msgspec
from sqlalchemy import ColumnElement, Delete, Table, TextClause, Update, bindparam, select

from cadenza.store.statements import Statement, Values
from cadenza.store.store import Store


class BatchedChange(msgspec.Struct, frozen=True):
    """`find` selects the place and the id of the next rows; `change` deletes or clears one row."""

    find: Statement
    change: Statement
    first: int | str | bytes

    @classmethod
    def of(
        cls, table: Table, place: str, change: Delete | Update, *where: ColumnElement[bool] | TextClause, id_: str = ""
    ) -> "BatchedChange":
        """The rows in the order of `place`, an indexed column. If it is not the id, `id_` is."""
        at, row_id = table.c[place], table.c[id_ or place]
        is_next = at >= bindparam("after") if id_ else at > bindparam("after")  # places that are no ids may be equal
        select_rows = select(at, row_id).where(*where, is_next).order_by(at).limit(bindparam("count"))
        kind = at.type.python_type
        is_row = row_id == bindparam("row")
        return cls(Statement(select_rows), Statement(change.where(*where, is_row)), -1 if kind is int else kind())

    async def batches(self, store: Store, values: Values, count: int) -> AsyncIterator[list[Values]]:
        """The values of `change` for each row. Rows are searched for outside of transactions: that may take long."""
        place: object = self.first
        while rows := await store.report(self.find, {**values, "after": place, "count": count}):
            yield [{**values, "row": row_id} for _, row_id in rows]
            place = rows[-1][0]
