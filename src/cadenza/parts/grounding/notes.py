"""Memory: notes that the owner of an account writes for its replies. They are never made from messages.

The rules are the same for the command line, the pages and the endpoints. The audit log has every change, without the
text. A note takes effect with the next request, in every process. After a note was changed or deleted, the caller
empties SQLite's write-ahead log, which may still have its text.
"""

import secrets
import unicodedata

from cadenza.core.errors import ControlError, Unknown
from cadenza.core.records import Actor, Owner
from cadenza.fleet.changes import make_change
from cadenza.parts.grounding import note_rows as notes
from cadenza.parts.grounding.note_rows import OwnedNote
from cadenza.store.store import Store, Transaction
from cadenza.store.tables import audit_events
from cadenza.store.tables.audit_events import AuditEvent

NOTES_MAX = 200
NOTE_CHARS_MAX = 1000
ID_CHARS_MAX = 64


def clean_note(text: str) -> str:
    """The text of a note, trimmed and with Unix line breaks. ControlError if it is empty, too long or has controls."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").strip()
    if not text:
        raise ControlError("A note must not be empty.")
    if len(text) > NOTE_CHARS_MAX:
        raise ControlError(f"A note has at most {NOTE_CHARS_MAX:,} characters; this one has {len(text):,}.")
    if any(unicodedata.category(letter) in {"Cc", "Cs"} for letter in text if letter != "\n"):
        raise ControlError("A note has no tabs and no other control characters, except line breaks.")
    return text


async def list_notes(store: Store, owner: Owner) -> list[OwnedNote]:
    """Oldest first."""
    return await notes.list_for_account(store, owner.account_id)


async def add_note(store: Store, owner: Owner, text: str, now_ms: int) -> OwnedNote:
    note = OwnedNote(
        id="note_" + secrets.token_urlsafe(18),
        account_id=owner.account_id,
        text=clean_note(text),
        created_at=now_ms,
        changed_at=now_ms,
    )

    def add(tx: Transaction) -> OwnedNote:
        if not notes.add(tx, note, NOTES_MAX):
            raise ControlError(f"An account has at most {NOTES_MAX} notes. Delete one first.")
        audit_events.add(tx, AuditEvent(now_ms, owner, "note.add", owner.account_id, note.id))
        return note

    return await make_change(store, add)


async def change_note(store: Store, by: Actor, note_id: str, text: str, now_ms: int) -> OwnedNote:
    """Replace the text of a note: of the owner's or, for an operator, of any."""
    cleaned = clean_note(text)

    def change(tx: Transaction) -> OwnedNote:
        note = _find(tx, by, note_id)
        if not notes.change(tx, note.id, cleaned, now_ms):
            raise Unknown("note")
        audit_events.add(tx, AuditEvent(now_ms, by, "note.change", note.account_id, note.id))
        return _find(tx, by, note_id)

    return await store.transact(change)


async def remove_note(store: Store, by: Actor, note_id: str, now_ms: int) -> None:
    """Delete a note: of the owner's or, for an operator, of any."""

    def remove(tx: Transaction) -> None:
        note = _find(tx, by, note_id)
        if not notes.remove(tx, note):
            raise Unknown("note")
        audit_events.add(tx, AuditEvent(now_ms, by, "note.remove", note.account_id, note.id))

    await make_change(store, remove)


def _find(tx: Transaction, by: Actor, note_id: str) -> OwnedNote:
    is_plain = note_id.isascii() and note_id.isprintable() and len(note_id) <= ID_CHARS_MAX
    note = notes.find(tx, note_id) if is_plain else None
    if note is None or (isinstance(by, Owner) and note.account_id != by.account_id):
        raise Unknown("note")
    return note
