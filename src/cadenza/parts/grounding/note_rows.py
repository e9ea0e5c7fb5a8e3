"""Notes of an account for its replies. `changes.make_change` runs what adds and removes them.

The account's row counts them, so that the look-up of a key needs no second read to know whether there are any.
"""

from typing import Literal

import msgspec
from sqlalchemy import bindparam, delete, insert, select, update

from cadenza.core.content import Content
from cadenza.core.public import Public
from cadenza.store.schema import accounts, notes
from cadenza.store.statements import Statement
from cadenza.store.store import Row, Store, Transaction, change_row


class Note(Public, Content, msgspec.Struct, frozen=True, kw_only=True):
    """A note."""

    object: Literal["note"] = "note"
    id: str
    text: str
    created_at: int
    changed_at: int


class OwnedNote(Note, frozen=True, kw_only=True):
    """A note, and whose it is."""

    account_id: str


FIELDS = ("id", "text", "created_at", "changed_at", "account_id")
COLUMNS = [notes.c[name] for name in FIELDS]
INSERT = Statement(insert(notes), *FIELDS)
_OF_ACCOUNT = notes.c.account_id == bindparam("account")
_OLDEST_FIRST = (notes.c.created_at, notes.c.id)
LIST = Statement(select(*COLUMNS).where(_OF_ACCOUNT).order_by(*_OLDEST_FIRST))
TEXTS = Statement(select(notes.c.text).where(_OF_ACCOUNT).order_by(*_OLDEST_FIRST))
ONE = Statement(select(*COLUMNS).where(notes.c.id == bindparam("note")))
REMOVE = Statement(delete(notes).where(notes.c.id == bindparam("note")))
_COUNTED = accounts.c.id == bindparam("account")
COUNT_UP = Statement(
    update(accounts)
    .where(_COUNTED, accounts.c.erased_at.is_(None), accounts.c.note_count < bindparam("most"))
    .values(note_count=accounts.c.note_count + 1)
)
COUNT_DOWN = Statement(update(accounts).where(_COUNTED).values(note_count=accounts.c.note_count - 1))


def add(tx: Transaction, note: OwnedNote, most: int) -> bool:
    """Add a note, unless its account has `most` already. The account's row is locked until the transaction ends."""
    if not tx.change(COUNT_UP, {"account": note.account_id, "most": most}):
        return False
    tx.change(INSERT, {name: getattr(note, name) for name in FIELDS})
    return True


def find(tx: Transaction, note_id: str) -> OwnedNote | None:
    row = tx.row(ONE, {"note": note_id})
    return None if row is None else _read(row)


def change(tx: Transaction, note_id: str, text: str, now_ms: int) -> bool:
    """Replace and overwrite the text. False if the note is gone."""
    tx.overwrite_deleted()
    return change_row(tx, notes, note_id, text=text, changed_at=now_ms) == 1


def remove(tx: Transaction, note: OwnedNote) -> bool:
    """Remove and overwrite the note. False if it was gone."""
    tx.overwrite_deleted()
    if not tx.change(REMOVE, {"note": note.id}):
        return False
    tx.change(COUNT_DOWN, {"account": note.account_id})
    return True


async def list_for_account(store: Store, account_id: str) -> list[OwnedNote]:
    """Oldest first."""
    return [_read(row) for row in await store.rows(LIST, {"account": account_id})]


async def texts_of(store: Store, account_id: str) -> list[str]:
    """The texts alone, oldest first, with one indexed read."""
    return [row[0] for row in await store.rows(TEXTS, {"account": account_id})]


def _read(row: Row) -> OwnedNote:
    return OwnedNote(**dict(zip(FIELDS, row, strict=True)))
