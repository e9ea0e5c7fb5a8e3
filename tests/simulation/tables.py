"""The tables of the model: columns, defaults, constraints and indexes, as the schema of the product has them.

A layout is the same for all databases of a kind. What a database stores is in its lists of rows and of index buckets,
which layouts name by number.
"""

import functools
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any, Literal

import sqlglot
from sqlalchemy import CheckConstraint, Column, MetaData, Table, Text, UniqueConstraint

from cadenza.store import schema
from cadenza.store.store import REVISION_TABLE
from tests.simulation.expressions import HELPERS, Expressions, Scope, SourceColumns, no_subquery

Kind = Literal["postgres", "sqlite"]
Tuple = tuple[Any, ...]
APPEND_ONLY = {"entries", "audit_events", "class_versions"}  # by triggers, which the metadata does not have
REVISIONS = MetaData()
Table(REVISION_TABLE, REVISIONS, Column("revision", Text, primary_key=True), Column("oldest_program", Text))


class RowState:
    """A row: its committed version, the version of the transaction that changes it, and who has locked it.

    A version is a tuple, or None if the row does not exist. `command` is the statement that wrote `pending`.
    """

    __slots__ = ("command", "committed", "locks", "pending", "table", "writer")

    def __init__(self, table: "TableLayout", pending: Tuple, writer: Any) -> None:
        self.table = table
        self.committed: Tuple | None = None
        self.pending: Tuple | None = pending
        self.writer = writer
        self.command = 0
        self.locks: dict[Any, int] = {}

    def seen_by(self, session: Any) -> Tuple | None:
        return self.pending if self.writer is session else self.committed


class TableIndex:
    """An index: finds rows by the values of its columns, if none of them is NULL."""

    def __init__(
        self, number: int, name: str, table: "TableLayout", columns: list[str], where: str, is_unique: bool
    ) -> None:
        self.number = number
        self.name = name
        self.columns = tuple(columns)
        self.is_unique = is_unique
        self.is_partial = bool(where)
        # whether it has all rows that an equality can ask for
        self.is_total = not where or where == f"{columns[0]} IS NOT NULL"
        self.places = tuple(table.places[name] for name in columns)
        self._key: Callable[[Tuple], Any] = itemgetter(*self.places)
        self._where = _predicate(table, where) if where else None

    def key(self, row: Tuple | None) -> Any:
        """The key of a row; None if the index does not have the row."""
        if row is None or (self._where is not None and not self._where(row)):
            return None
        key = self._key(row)
        if type(key) is tuple and None in key:
            return None
        return key


class ForeignKeyLayout:
    def __init__(self, name: str, place: int, parent: "TableLayout", target: TableIndex) -> None:
        self.name = name
        self.place = place
        self.parent = parent
        self.target = target


class TableLayout:
    def __init__(self, number: int, table: Table, kind: Kind) -> None:
        self.number = number
        self.name = table.name
        self.columns = {column.name: bool(column.nullable) for column in table.columns}
        self.places = {name: place for place, name in enumerate(self.columns)}
        self.defaults = [_default(column) for column in table.columns]
        self.identity = next((self.places[c.name] for c in table.columns if c is table.autoincrement_column), None)
        self.is_append_only = table.name in APPEND_ONLY
        self.indexes: list[TableIndex] = []
        self.foreign_keys: list[ForeignKeyLayout] = []
        self.children: list[tuple[TableLayout, ForeignKeyLayout]] = []
        self.check = _check(self, table, kind)

    def source(self, variable: str, *, is_optional: bool = False) -> SourceColumns:
        return SourceColumns(variable, self.columns, is_optional=is_optional)

    @functools.cached_property
    def unique(self) -> list[TableIndex]:
        return [index for index in self.indexes if index.is_unique]

    @functools.cached_property
    def key_places(self) -> tuple[int, ...]:
        """The columns that a foreign key could refer to. Who changes one of them locks the row FOR UPDATE."""
        return tuple({place for index in self.unique if not index.is_partial for place in index.places})


class Layouts:
    """All tables of a kind of database, and the number of their indexes."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.index_count = 0
        tables = [*schema.metadata.tables.values(), *REVISIONS.tables.values()]
        self.tables = {table.name: TableLayout(number, table, kind) for number, table in enumerate(tables)}
        for table in tables:
            self.tables[table.name].indexes = list(self._indexes(table))
        for table in tables:
            self._link(table)

    def _indexes(self, table: Table) -> Iterator[TableIndex]:
        """The primary key and the unique constraints, then the indexes: in Postgres's order."""
        layout = self.tables[table.name]
        seen = set[tuple[str, ...]]()
        unique = [c for c in table.constraints if isinstance(c, UniqueConstraint)]
        wanted = [
            (str(c.name or f"uq_{table.name}"), [one.name for one in c.columns], "", True)
            for c in (table.primary_key, *unique)
        ]
        for index in sorted(table.indexes, key=lambda one: str(one.name)):
            where = index.dialect_options["sqlite"]["where"]  # of both databases
            columns = [one.name for one in index.columns]
            wanted.append(
                (
                    str(index.name),
                    columns if index.unique else columns[:1],
                    "" if where is None else str(where.text),
                    bool(index.unique),
                )
            )
        wanted += [(f"pk_{table.name}_first", wanted[0][1][:1], "", False)]
        for name, columns, where, is_unique in wanted:
            if not is_unique and (tuple(columns) in seen or where):
                continue
            if not where:
                seen.add(tuple(columns))
            yield TableIndex(self.index_count, name, layout, columns, where, is_unique)
            self.index_count += 1

    def _link(self, table: Table) -> None:
        child = self.tables[table.name]
        for constraint in sorted(table.foreign_key_constraints, key=lambda one: child.places[one.columns[0].name]):
            [element] = constraint.elements
            parent = self.tables[element.column.table.name]
            target = next(index for index in parent.unique if index.columns == (element.column.name,))
            place = child.places[element.parent.name]
            key = ForeignKeyLayout(
                str(constraint.name or f"fk_{table.name}_{element.parent.name}"), place, parent, target
            )
            child.foreign_keys.append(key)
            parent.children.append((child, key))


@functools.cache
def layouts(kind: Kind) -> Layouts:
    return Layouts(kind)


def _default(column: "Column[Any]") -> Any:
    default: Any = column.server_default
    if default is None:
        return None
    if isinstance(default.arg, str):
        return default.arg
    written = str(default.arg)
    if written in {"true", "false"}:
        return written == "true"
    return written.strip("'") if written.startswith("'") else int(written)


def _predicate(table: TableLayout, where: str) -> Callable[[Tuple], Any]:
    condition = _expressions(table).filter(sqlglot.parse_one(where, dialect="postgres"))
    predicate: Callable[[Tuple], Any] = eval(f"lambda r0: {condition}", dict(HELPERS))
    return predicate


def _check(layout: TableLayout, table: Table, kind: Kind) -> Callable[[Tuple], str | None]:
    """A function that returns the name of the constraint that a row breaks, if any."""
    lines = ["def check(r0):"]
    for column, nullable in layout.columns.items():
        if not nullable:
            lines.append(f"    if r0[{layout.places[column]}] is None: return 'not null: {table.name}.{column}'")
    for constraint in sorted(
        (c for c in table.constraints if isinstance(c, CheckConstraint)), key=lambda c: str(c.name)
    ):
        written = sqlglot.parse_one(str(constraint.sqltext), dialect="postgres")
        lines.append(f"    if {_expressions(layout).value(written)[0]} is False: return {str(constraint.name)!r}")
    lines.append("    return None")
    names: dict[str, Any] = dict(HELPERS)
    exec("\n".join(lines), names)
    check: Callable[[Tuple], str | None] = names["check"]
    return check


def _expressions(table: TableLayout) -> Expressions:
    scope = Scope()
    scope.sources[table.name] = table.source("r0")
    return Expressions(scope, no_subquery)
