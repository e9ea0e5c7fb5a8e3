"""Memory: the page of notes, and the same on /platform/api. Notes of other accounts are 404, like unknown ones."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import msgspec
from starlette.responses import Response

from cadenza.control.account.memory import (
    NOTE_CHARS_MAX,
    NOTES_MAX,
    UnknownNote,
    add_note,
    change_note,
    list_notes,
    remove_note,
)
from cadenza.core.errors import ControlError
from cadenza.core.formats import rfc3339
from cadenza.core.rates import Rate
from cadenza.store.tables.notes import Note
from cadenza.web.chat.grounding import offer_of
from cadenza.web.errors import Missing, TooMany
from cadenza.web.render import redirect
from cadenza.web.routes import Endpoint, Routes, get, post
from cadenza.web.session_cookies import status_of
from cadenza.web.visit import Visit

PAGE = "/settings/memory"
CHANGE_RATE = Rate(1.0, 60)  # changes of the notes of one account


class NoteText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The text of a note: at most 1,000 characters, with line breaks and no other control characters."""

    text: str


class Empty(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A form with a button only."""


class NoteObject(msgspec.Struct, frozen=True, kw_only=True):
    """A note."""

    object: Literal["note"] = "note"
    id: str
    text: str
    created_at: str
    changed_at: str


class NoteList(msgspec.Struct, frozen=True, kw_only=True):
    """All notes of the account, oldest first."""

    object: Literal["list"] = "list"
    data: list[NoteObject]


async def memory_page(visit: Visit) -> Response:
    return await _show(visit)


async def add(visit: Visit) -> Response:
    form = await visit.form(NoteText)
    try:
        await _add(visit, form.text)
    except ControlError as error:
        return await _show(visit, error, typed=form.text)
    return redirect(PAGE, "note-added")


async def change(visit: Visit) -> Response:
    form = await visit.form(NoteText)
    try:
        await _change(visit, form.text)
    except ControlError as error:
        return await _show(visit, error, edited_id=_note_id(visit), edited=form.text)
    return redirect(PAGE, "note-changed")


async def remove(visit: Visit) -> Response:
    await visit.form(Empty)
    await _remove(visit)
    return redirect(PAGE, "note-removed")


async def api_list(visit: Visit) -> NoteList:
    return NoteList(data=[_object(note) for note in await list_notes(visit.context.store, visit.account.id)])


async def api_add(visit: Visit, given: NoteText) -> NoteObject:
    return _object(await _add(visit, given.text))


async def api_change(visit: Visit, given: NoteText) -> NoteObject:
    return _object(await _change(visit, given.text))


async def api_remove(visit: Visit) -> None:
    await _remove(visit)


async def _add(visit: Visit, text: str) -> Note:
    await _take_turn(visit)
    account = visit.account
    return await add_note(visit.context.store, account.id, text, visit.now_ms, by=account.email)


async def _change(visit: Visit, text: str) -> Note:
    await _take_turn(visit)
    account = visit.account
    with _own_notes():
        note = await change_note(visit.context.store, _note_id(visit), text, visit.now_ms, account.id, by=account.email)
    visit.context.log_eraser.erase_soon()
    return note


async def _remove(visit: Visit) -> None:
    await _take_turn(visit)
    account = visit.account
    with _own_notes():
        await remove_note(visit.context.store, _note_id(visit), visit.now_ms, account.id, by=account.email)
    visit.context.log_eraser.erase_soon()


@contextmanager
def _own_notes() -> Iterator[None]:
    try:
        yield
    except UnknownNote as error:
        raise Missing(error.message) from None


async def _take_turn(visit: Visit) -> None:
    """429 for an account that changes its notes too often."""
    ticket = await visit.context.rates.take(f"notes:{visit.account.id}", CHANGE_RATE)
    if not ticket.is_granted:
        raise TooMany("Too many changes of notes at once. Try again in a moment.", ticket.wait_s)


def _note_id(visit: Visit) -> str:
    return str(visit.request.path_params["note_id"])


async def _show(
    visit: Visit, error: ControlError | None = None, *, typed: str = "", edited_id: str = "", edited: str = ""
) -> Response:
    """The page. After a mistake, what was typed stays in its form."""
    return visit.page(
        "memory.html",
        status_of(error) if error else 200,
        notes=(await list_notes(visit.context.store, visit.account.id))[::-1],
        notes_max=NOTES_MAX,
        chars_max=NOTE_CHARS_MAX,
        has_memory=offer_of(visit.context.gateway).memory,
        error=error.message if error else "",
        typed=typed,
        edited_id=edited_id,
        edited=edited,
    )


def _object(note: Note) -> NoteObject:
    return NoteObject(
        id=note.id, text=note.text, created_at=rfc3339(note.created_at), changed_at=rfc3339(note.changed_at)
    )


ROUTES: Routes = (
    get(PAGE, memory_page),
    post(PAGE, add),
    post(PAGE + "/{note_id}", change),
    post(PAGE + "/{note_id}/remove", remove),
    Endpoint("GET", "/memory", "The notes of the account, oldest first", api_list, returns=NoteList),
    Endpoint("POST", "/memory", "Add a note", api_add, NoteText, NoteObject),
    Endpoint("PATCH", "/memory/{note_id}", "Replace the text of a note", api_change, NoteText, NoteObject),
    Endpoint("DELETE", "/memory/{note_id}", "Delete a note for good", api_remove),
)
