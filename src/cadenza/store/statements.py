"""SQL statements, built once with SQLAlchemy for both databases and run by each database's own driver.

The compiled text goes straight to the driver: on SQLite 7 µs for a small statement instead of SQLAlchemy's 36. The
session of Postgres (postgres/session.py) compiles the same statements for asyncpg.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Any

from sqlalchemy import ARRAY, ColumnElement, Executable, Select, bindparam, func
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import Dialect
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.expression import ClauseElement

Values = Mapping[str, Any]
PickValues = Callable[[Values], tuple[Any, ...]]

SQLITE = sqlite.dialect(paramstyle="qmark")  # positional: the driver is slower with named values


class Statement:
    """One statement, compiled when it is first run, because a start needs few of them.

    A function is given for a large one, which is then also built when it is first run. `columns` are those that an
    INSERT fills. `postgres` is given where Postgres needs other SQL than SQLite.
    """

    def __init__(
        self, core: Executable | Callable[[], Executable], *columns: str, postgres: Executable | None = None
    ) -> None:
        self._core = core
        self._postgres = postgres
        self.columns = columns or None

    @cached_property
    def core(self) -> Executable:
        return self._core() if callable(self._core) else self._core

    @property
    def postgres_core(self) -> Executable:
        return self.core if self._postgres is None else self._postgres

    @cached_property
    def sqlite_text(self) -> str:
        return self._sqlite[0]

    @cached_property
    def sqlite_values(self) -> PickValues:
        """A function that orders named values by the placeholders of `sqlite_text`."""
        return self._sqlite[1]

    @cached_property
    def _sqlite(self) -> tuple[str, PickValues]:
        """The text and the function. The compiler, which has much more, is not kept."""
        compiled = compile_for(SQLITE, self.core, self.columns)
        return str(compiled), pick_values(compiled)


class SelectByIds:
    """Selects the rows whose `column` is one of many ids, for `Transaction.rows_by_ids`."""

    def __init__(self, core: Select[Any], column: ColumnElement[Any]) -> None:
        self._core, self._column = core, column
        self._of_sizes = dict[int, tuple[Statement, list[str]]]()
        self.one = Statement(core.where(column == bindparam("id")))
        self.many = Statement(core.where(column == func.any(bindparam("ids", type_=ARRAY(column.type)))))

    def for_sqlite(self, ids: Sequence[str], values: Values) -> tuple[Statement, Values]:
        """A statement for these ids, and its values. The last id is repeated up to a power of two: so they are few."""
        if len(ids) == 1:
            return self.one, {**values, "id": ids[0]}
        size = 1 << (len(ids) - 1).bit_length()
        if size not in self._of_sizes:
            names = [f"id_{number}" for number in range(size)]
            self._of_sizes[size] = Statement(self._core.where(self._column.in_(map(bindparam, names)))), names
        statement, names = self._of_sizes[size]
        return statement, {**values, **dict.fromkeys(names, ids[-1]), **dict(zip(names, ids, strict=False))}


def total(column: ColumnElement[Any]) -> ColumnElement[int]:
    """The sum of a column, 0 if there are no rows."""
    return func.coalesce(func.sum(column), 0)


def compile_for(dialect: Dialect, core: Executable, columns: tuple[str, ...] | None) -> SQLCompiler:
    assert isinstance(core, ClauseElement)
    compiled = core.compile(dialect=dialect, column_keys=columns)
    assert isinstance(compiled, SQLCompiler)
    return compiled


def pick_values(compiled: SQLCompiler) -> PickValues:
    """Return a function that orders named values, and the constants of the statement, by its placeholders."""
    names = list(compiled.positiontup or ())
    pick = _pick_in_order(names)
    constants = {name: compiled.binds[name].value for name in names if not compiled.binds[name].required}
    return (lambda values: pick({**constants, **values})) if constants else pick


def _pick_in_order(names: list[str]) -> PickValues:
    if not names:
        return lambda _: ()
    if len(names) == 1:
        return lambda values: (values[names[0]],)
    return itemgetter(*names)
