"""What all tables are made of: their register, and columns and indexes that many of them have."""

from typing import Any

from sqlalchemy import Column, Index, MetaData, text
from sqlalchemy.types import TypeEngine

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)


def index_where(condition: str, name: str, *columns: str, unique: bool = False) -> Index:
    """An index of the rows that meet a condition. Naming Postgres here too would load its dialect at every start."""
    return Index(name, *columns, unique=unique, sqlite_where=text(condition))


def required(kind: type[TypeEngine[Any]], *names: str) -> list[Column[Any]]:
    """Several columns that are not null."""
    return [Column(name, kind, nullable=False) for name in names]
