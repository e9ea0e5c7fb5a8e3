"""Statements as asyncpg wants them: numbered placeholders, and the values in their order. Compiled at the first use."""

import functools
from typing import NamedTuple

from sqlalchemy.dialects.postgresql import asyncpg
from sqlalchemy.sql.compiler import SQLCompiler

from cadenza.store.statements import PickValues, Statement, pick_values

DIALECT = asyncpg.dialect()  # type: ignore[no-untyped-call]
STATEMENTS_MAX = 1024


class PostgresStatement(NamedTuple):
    """The text, and what puts named values into the order of its placeholders."""

    text: str
    pick: PickValues


@functools.lru_cache(STATEMENTS_MAX)
def for_postgres(statement: Statement) -> PostgresStatement:
    compiled = statement.core.compile(dialect=DIALECT, column_keys=statement.columns)
    assert isinstance(compiled, SQLCompiler)
    return PostgresStatement(str(compiled), pick_values(compiled))
