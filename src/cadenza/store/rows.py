"""Rows as records: a field of the record is the column of its name, or the one that is given for it."""

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import msgspec
from sqlalchemy import Boolean, ColumnElement, FromClause

from cadenza.store.store import Row

T = TypeVar("T", bound=msgspec.Struct)


class Rows(Generic[T]):
    """How rows of `columns` become records of `kind`. Booleans are read as such: SQLite has none.

    `reads` has what reads the value of a column otherwise.
    """

    def __init__(
        self,
        kind: type[T],
        table: FromClause,
        reads: Mapping[str, Callable[[Any], object]] | None = None,
        /,
        **others: ColumnElement[Any],
    ) -> None:
        self._kind, names = kind, kind.__struct_fields__
        self.columns = [others[name] if name in others else table.c[name] for name in names]
        flags = [name for name, column in zip(names, self.columns, strict=True) if isinstance(column.type, Boolean)]
        self._reads = [*dict.fromkeys(flags, bool).items(), *(reads or {}).items()]

    def read(self, row: Row) -> T:
        values = dict(zip(self._kind.__struct_fields__, row, strict=True))
        for name, read in self._reads:
            values[name] = read(values[name])
        return self._kind(**values)
