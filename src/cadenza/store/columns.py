"""What all tables are made of: their register, columns and indexes of many, and what each means to people.

Each table says what is in it, until when it is kept, and whether the owner of an account gets it. Each column of an
exported table says the same, and what erasing makes of it. The archive, erasing and docs/privacy.md derive from this.
"""

from enum import Enum
from typing import Any, Literal

import msgspec
from sqlalchemy import BigInteger, Column, Index, Integer, MetaData, Table, text
from sqlalchemy.schema import SchemaItem
from sqlalchemy.sql.elements import ColumnElement, TextClause
from sqlalchemy.types import TypeEngine

SECRET = "a secret, or a hash of one"  # noqa: S105 a reason
PROVIDERS = "which provider and model answered is known to operators only"
INTERNAL = "internal bookkeeping of the service"
ABOUT = "about"  # in `info` of a table
MEANING = "meaning"  # in `info` of a column

Removed = Literal["", "at once", "in batches"]  # the rows of an account that is erased; in batches: they may be many
Info = dict[str, Any]  # as SQLAlchemy has it
Kind = TypeEngine[Any] | type[TypeEngine[Any]]
ServerDefault = str | TextClause | ColumnElement[Any] | None
ZERO = text("0")

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)


class Exported(msgspec.Struct, frozen=True):
    """A table whose rows of an account are a file of its archive, in the order of `by` and of their ids."""

    file: str
    what: str
    kept: str
    removed: Removed = ""
    by: str = ""
    owner: str = "account_id"  # the column that refers to the account


class LeftOut(msgspec.Struct, frozen=True):
    """A table that refers to people and is not in an archive. `what` is the reason, too."""

    what: str
    kept: str
    removed: Removed = ""


class OfService(msgspec.Struct, frozen=True):
    """A table that refers to nobody."""

    what: str
    kept: str


class WhenErased(Enum):
    """What erasing does to a column that it gives no fixed value."""

    KEPT = "the value stays"
    REPLACED = "store/tables/erasure.py has its own words for the new value"


REPLACED = WhenErased.REPLACED


class Meaning(msgspec.Struct, frozen=True):
    """What a column means, or why it is left out, and the value that erasing the account gives it."""

    words: str
    is_shown: bool
    erased: object


def shown(words: str, erased: object = WhenErased.KEPT) -> Info:
    return {MEANING: Meaning(words, is_shown=True, erased=erased)}


def hidden(reason: str, erased: object = WhenErased.KEPT) -> Info:
    return {MEANING: Meaning(reason, is_shown=False, erased=erased)}


def table(name: str, about: Exported | LeftOut | OfService, *parts: SchemaItem) -> Table:
    return Table(name, metadata, *parts, info={ABOUT: about})


def index_where(condition: str, name: str, *columns: str, unique: bool = False) -> Index:
    """An index of the rows that meet a condition. Naming Postgres here too would load its dialect at every start."""
    return Index(name, *columns, unique=unique, sqlite_where=text(condition))


def required(kind: Kind, /, *names: str, default: ServerDefault = None, **meanings: str | Info) -> list[Column[Any]]:
    """Several columns that are not null, with what they mean. A text is what is shown."""
    return [
        Column(name, kind, nullable=False, server_default=default, info=_info(one))
        for name, one in (dict.fromkeys(names) | meanings).items()
    ]


def optional(kind: Kind, /, *names: str, **meanings: str | Info) -> list[Column[Any]]:
    """Several columns that may be null."""
    return [Column(name, kind, info=_info(one)) for name, one in (dict.fromkeys(names) | meanings).items()]


def numbered(meaning: str | Info | None = None) -> Column[int]:
    """The id of rows that the database numbers."""
    kind = BigInteger().with_variant(Integer, "sqlite")
    return Column("id", kind, primary_key=True, autoincrement=True, info=_info(meaning))


def _info(meaning: str | Info | None) -> Info | None:
    return shown(meaning) if isinstance(meaning, str) else meaning
