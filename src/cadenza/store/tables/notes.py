"""Notes of an account for its replies. `changes.make_change` runs what adds and removes them.

The account's row counts them, so that the look-up of a key needs no second read to know whether there are any.
"""

import msgspec
from sqlalchemy import bindparam, delete, insert, select, update

from cadenza.core.content import Content
from cadenza.store.schema import accounts, notes
from cadenza.store.statements import Statement
from cadenza.store.store import Store, Transaction, change_row


class Note(Content, msgspec.Struct, frozen=True):
    """A note, and when it was written and last changed."""

    id: str
    account_id: str
    text: str
    created_at: int
    changed_at: int


COLUMNS = [notes.c[name] for name in Note.__struct_fields__]
INSERT = Statement(insert(notes), *Note.__struct_fields__)
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


def add(tx: Transaction, note: Note, most: int) -> bool:
    """Add a note, unless its account has `most` already. The account's row is locked until the transaction ends."""
    if not tx.change(COUNT_UP, {"account": note.account_id, "most": most}):
        return False
    tx.change(INSERT, msgspec.structs.asdict(note))
    return True


def find(tx: Transaction, note_id: str) -> Note | None:
    row = tx.row(ONE, {"note": note_id})
    return None if row is None else Note(*row)


def change(tx: Transaction, note_id: str, text: str, now_ms: int) -> bool:
    """Replace and overwrite the text. False if the note is gone."""
    tx.overwrite_deleted()
    return change_row(tx, notes, note_id, text=text, changed_at=now_ms) == 1


def remove(tx: Transaction, note: Note) -> bool:
    """Remove and overwrite the note. False if it was gone."""
    tx.overwrite_deleted()
    if not tx.change(REMOVE, {"note": note.id}):
        return False
    tx.change(COUNT_DOWN, {"account": note.account_id})
    return True


async def list_for_account(store: Store, account_id: str) -> list[Note]:
    """Oldest first."""
    return [Note(*row) for row in await store.rows(LIST, {"account": account_id})]


async def texts_of(store: Store, account_id: str) -> list[str]:
    """The texts alone, oldest first, with one indexed read."""
    return [row[0] for row in await store.rows(TEXTS, {"account": account_id})]
