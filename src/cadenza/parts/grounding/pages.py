"""Memory: the page of notes, and the same on /platform/api. Notes of other accounts are 404, like unknown ones."""

from typing import Literal

import msgspec
from starlette.responses import Response

from cadenza.core.content import Content
from cadenza.parts.grounding.note_rows import Note
from cadenza.parts.grounding.notes import (
    NOTE_CHARS_MAX,
    NOTES_MAX,
    add_note,
    change_note,
    list_notes,
    remove_note,
)
from cadenza.parts.site.chat.offer import offer_of
from cadenza.parts.site.joining import Pages
from cadenza.parts.site.render import Tab
from cadenza.parts.site.routes import Routes, endpoint, form, get
from cadenza.parts.site.visit import Visit

PAGE = "/settings/memory"


class NoteText(Content, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The text of a note: at most 1,000 characters, with line breaks and no other control characters."""

    text: str


class NoteList(msgspec.Struct, frozen=True, kw_only=True):
    """All notes of the account, oldest first."""

    object: Literal["list"] = "list"
    data: list[Note]


async def memory_page(visit: Visit) -> Response:
    """After a mistake, what was typed stays in its form."""
    return visit.page(
        "grounding/memory.html",
        notes=(await list_notes(visit.store, visit.owner))[::-1],
        notes_max=NOTES_MAX,
        chars_max=NOTE_CHARS_MAX,
        has_memory=offer_of(visit.service.gateway).memory,
        typed=visit.typed.get("text", ""),
        edited_id=visit.request.path_params.get("note_id", ""),
    )


async def list_all(visit: Visit) -> NoteList:
    return NoteList(data=list(await list_notes(visit.store, visit.owner)))


async def add(visit: Visit, given: NoteText) -> Note:
    await visit.limit_changes("notes")
    return await add_note(visit.store, visit.owner, given.text, visit.now_ms)


async def change(visit: Visit, given: NoteText) -> Note:
    await visit.limit_changes("notes")
    note = await change_note(visit.store, visit.owner, visit.path_param("note_id"), given.text, visit.now_ms)
    visit.context.log_eraser.erase_soon()
    return note


async def remove(visit: Visit) -> None:
    await visit.limit_changes("notes")
    await remove_note(visit.store, visit.owner, visit.path_param("note_id"), visit.now_ms)
    visit.context.log_eraser.erase_soon()


ROUTES: Routes = (
    get(PAGE, memory_page),
    form(PAGE, add, PAGE, "note-added", on_error=memory_page),
    form(PAGE + "/{note_id}", change, PAGE, "note-changed", on_error=memory_page),
    form(PAGE + "/{note_id}/remove", remove, PAGE, "note-removed"),
    endpoint("GET", "/memory", "The notes of the account, oldest first", list_all, "memory:read"),
    endpoint("POST", "/memory", "Add a note", add, "memory:write"),
    endpoint("PATCH", "/memory/{note_id}", "Replace the text of a note", change, "memory:write"),
    endpoint("DELETE", "/memory/{note_id}", "Delete a note permanently", remove, "memory:write"),
)
PAGES = Pages(
    routes=ROUTES,
    tabs=(Tab(PAGE, "Memory", after="/settings"),),
    notes={
        "note-added": "The note is added.",
        "note-changed": "The note is changed.",
        "note-removed": "The note is deleted.",
    },
)
