"""Statements as asyncpg wants them: numbered placeholders, and the values in their order. Compiled at the first use."""

import functools
from typing import NamedTuple

from sqlalchemy.dialects.postgresql import asyncpg

from cadenza.store.statements import PickValues, Statement, compile_for, pick_values

DIALECT = asyncpg.dialect()  # type: ignore[no-untyped-call]
STATEMENTS_MAX = 1024


class PostgresStatement(NamedTuple):
    """The text, and what puts named values into the order of its placeholders."""

    text: str
    pick: PickValues


@functools.lru_cache(STATEMENTS_MAX)
def for_postgres(statement: Statement) -> PostgresStatement:
    compiled = compile_for(DIALECT, statement.postgres_core, statement.columns)
    return PostgresStatement(str(compiled), pick_values(compiled))
