"""Where the retention audit finds files, notes and what a search reads."""

import base64
from functools import partial

from cadenza import clock
from cadenza.control.account.accounts import create_account, get_owner
from cadenza.control.account.erasure import erase_account
from cadenza.core.records import COMMAND_LINE, DEFAULT_CLASS
from cadenza.parts.grounding.files.samples import READABLE, UNREADABLE, make_sample
from cadenza.parts.grounding.notes import add_note, remove_note
from cadenza.parts.retention.canaries import TEXT, Canary
from cadenza.parts.retention.case import CHAT, DELETED, CaseStep, Fields, PartAudit, RetentionFixture, chat, site
from cadenza.parts.retention.config import PrivateConfig, Table

UPLOAD = "POST /platform/api/chat/file?name={word}"
NOTE = site("POST /platform/api/memory", {"text": TEXT})


def private(given: Table, config: PrivateConfig, upstream_url: str) -> Table:
    """The search engine is the built-in one."""
    grounding = given.get("grounding", {})
    search = grounding.get("search")
    if not search or search["engine"] == "off":
        config.notes.append("search is off")
        return given
    config.secret(search.get("api_key_env"), "the key of the search engine")
    own = {**search, "url": upstream_url, "allow_networks": ["127.0.0.1"]}
    return {"grounding": {**grounding, "search": own}}


def sample_chat(name: str, canary: Canary) -> Fields:
    return file_chat(f"a.{name}", make_sample(name, canary.word))


def file_chat(name: str, data: bytes) -> Fields:
    code = f"data:application/octet-stream;base64,{base64.b64encode(data).decode()}"
    part = {"type": "file", "file": {"filename": name, "file_data": code}}
    return chat([{"type": "text", "text": "Summarize the file."}, part])


async def delete_note_by_command(fixture: RetentionFixture, canary: Canary) -> None:
    """A note that the command line deletes. It empties the write-ahead log when it ends."""
    owner, now_ms = await get_owner(fixture.store, fixture.email), clock.now_ms()
    note = await add_note(fixture.store, owner, canary.text, now_ms)
    await remove_note(fixture.store, owner, note.id, now_ms)
    await fixture.store.empty_log()


async def erase(fixture: RetentionFixture, canary: Canary) -> None:
    """Erase another account, with a note."""
    email, now_ms = f"{canary.word}@audit.invalid", clock.now_ms()
    made = await create_account(fixture.store, email, 0, DEFAULT_CLASS, now_ms)
    await add_note(fixture.store, made.owner, canary.text, now_ms)
    await erase_account(fixture.store, email, COMMAND_LINE, now_ms)


AUDIT = PartAudit(
    {
        **{f"chat, file: .{name}": [CaseStep(CHAT, partial(sample_chat, name))] for name in READABLE},
        "chat, file: its name": [CaseStep(CHAT, file_chat("{word}.txt", b"Nothing."))],
        **{f"refused: file .{name}": [CaseStep(CHAT, partial(sample_chat, name))] for name in UNREADABLE},
        "web chat: file": [site(f"{UPLOAD}.txt", lambda canary: canary.text.encode())],
        "web chat: file that is refused": [
            site(f"{UPLOAD}.pdf", lambda canary: make_sample("damaged.pdf", canary.word))
        ],
        "search: question, results and pages": [
            CaseStep(CHAT, chat("Search the web: what is new about {word} today?"))
        ],
        "a note": [NOTE],
        "a note that was replaced": [NOTE, site("PATCH /platform/api/memory/{id}", {"text": "Another text."})],
        "a note that was deleted": [NOTE, site("DELETE /platform/api/memory/{id}", {})],
        "a note that a command deleted": delete_note_by_command,
        "a note of an account that was erased": erase,
    },
    {
        "a note": {"notes"},
        **{
            f"a note {gone}": {DELETED}
            for gone in (
                "that was replaced",
                "that was deleted",
                "that a command deleted",
                "of an account that was erased",
            )
        },
    },
    private=private,
)
