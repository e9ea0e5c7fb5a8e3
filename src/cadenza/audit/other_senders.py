"""What others than clients of the API send: pages, searches and commands; and what is stored by design.

What is stored by design is sent too, for two reasons: it must be in its own place only, and a search that does not find
it there would find nothing else either. What was deleted must be nowhere.
"""

import json
from collections.abc import Iterator
from urllib.parse import quote

from cadenza.audit import sample_files
from cadenza.audit.api_senders import chat_fields
from cadenza.audit.client import AuditReply
from cadenza.audit.needles import AuditNeedle
from cadenza.audit.private_config import MODEL, PROVIDER
from cadenza.audit.stage import DOMAIN, AuditStage, Kept, Sender
from cadenza.control.account.accounts import create_account, get_account
from cadenza.control.account.erasure import erase_account
from cadenza.control.account.memory import add_note, change_note, remove_note
from cadenza.control.keys import KeyOrder, create_key
from cadenza.core.errors import ControlError
from cadenza.core.records import COMMAND_LINE, DEFAULT_CLASS

IN_STORE = frozenset({Kept.STORE})
DELETED = frozenset({Kept.REMAINS})
DAMAGED = sample_files.REFUSED["damaged.pdf"]
QUESTION = "Search the web: what is the latest news about {} today?"


async def _sign_in(stage: AuditStage, needle: AuditNeedle) -> AuditReply:
    account = stage.accounts
    return await stage.browser.sign_in(account.email, account.password, {"user-agent": needle.word})


async def _chat_on_page(stage: AuditStage, needle: AuditNeedle) -> AuditReply:
    stage.play(needle)
    return await stage.browser.api("POST", "/chat", chat_fields(needle.text, stream=True))


async def _chat(stage: AuditStage, needle: AuditNeedle) -> AuditReply:
    stage.play(needle)
    return await stage.client.chat(chat_fields(needle.text))


async def _search(stage: AuditStage, needle: AuditNeedle) -> AuditReply:
    stage.play(needle)
    return await stage.client.chat(chat_fields(QUESTION.format(needle.word)))


async def _add_note(stage: AuditStage, needle: AuditNeedle) -> AuditReply:
    return await stage.browser.api("POST", "/memory", {"text": needle.text})


async def _replace_note(stage: AuditStage, needle: AuditNeedle) -> AuditReply:
    added = await _add_note(stage, needle)
    return await stage.browser.api("PATCH", f"/memory/{_id_of(added)}", {"text": "It says something else now."})


async def _remove_note(stage: AuditStage, needle: AuditNeedle) -> AuditReply:
    added = await _add_note(stage, needle)
    return await stage.browser.api("DELETE", f"/memory/{_id_of(added)}", {})


async def _export(stage: AuditStage, needle: AuditNeedle) -> AuditReply:
    """The archive has the notes, which must stay in no other file."""
    return await stage.browser.send_form(f"/settings/security/export?q={needle.word}", {})


def _id_of(reply: AuditReply) -> str:
    """The id in a reply that may be chunked."""
    start, end = reply.body.find(b"{"), reply.body.rfind(b"}")
    return str(json.loads(reply.body[start : end + 1]).get("id")) if start >= 0 else ""


async def _change_notes_by_command(stage: AuditStage, needle: AuditNeedle) -> None:
    """Notes that the command line changes and deletes. It empties the write-ahead log when it ends."""
    account = await get_account(stage.store, stage.accounts.email)
    note = await add_note(stage.store, account.id, needle.text, stage.now_ms())
    await change_note(stage.store, note.id, f"{needle.text} again", stage.now_ms())
    await remove_note(stage.store, note.id, stage.now_ms())
    await stage.store.empty_log()


async def _name_key(stage: AuditStage, needle: AuditNeedle) -> None:
    await create_key(stage.store, stage.accounts.email, KeyOrder(needle.word), stage.now_ms())


async def _erase_account(stage: AuditStage, needle: AuditNeedle) -> None:
    email = f"{needle.word}@{DOMAIN}"
    made = await create_account(stage.store, email, needle.word[::-1], 0, DEFAULT_CLASS, stage.now_ms())
    await create_key(stage.store, email, KeyOrder(needle.word), stage.now_ms())
    await add_note(stage.store, made.id, needle.text, stage.now_ms())
    await erase_account(stage.store, email, COMMAND_LINE, stage.now_ms())


async def _index(stage: AuditStage, needle: AuditNeedle) -> None:
    folder = stage.folders.inputs / "documents"
    folder.mkdir()
    (folder / "page.html").write_bytes(sample_files.READ["html"](needle.word))
    ended = await stage.service.run("index", "index", str(folder))
    if ended.code:
        raise ControlError("'cadenza index' failed in the audit.")


async def _evaluate(stage: AuditStage, needle: AuditNeedle) -> None:
    stage.play(needle)
    suite = stage.folders.inputs / "suite.jsonl"
    graders = [{"kind": "contains", "texts": [needle.word]}]
    case = {"id": "one", "tags": ["audit"], "messages": [{"role": "user", "content": needle.text}], "graders": graders}
    suite.write_text(json.dumps(case) + "\n")
    candidate = f"{PROVIDER}/{MODEL}-2"
    options = ("--candidate", candidate, "--suite", str(suite), "--runs", "1")
    ended = await stage.service.run("evaluate", "classes", "evaluate", DEFAULT_CLASS, *options)
    if ended.code:
        raise ControlError("'cadenza classes evaluate' failed in the audit.")


def on_pages() -> Iterator[Sender]:
    """The web application."""
    yield Sender("sign-in: User-Agent", _sign_in, is_live=True, kept=IN_STORE, tables=frozenset({"sessions"}))
    yield Sender(
        "sign-in: unknown address and wrong password",
        lambda s, n: s.browser.sign_in(f"{n.word}@{DOMAIN}", n.text),
        is_live=True,
    )
    yield Sender("sign-in: wrong password", lambda s, n: s.browser.sign_in(s.accounts.email, n.text), is_live=True)
    yield Sender("page: query", lambda s, n: s.browser.get(f"/sign-in?next=/{n.word}&q={n.word}"), is_live=True)
    yield Sender("page: unknown path", lambda s, n: s.browser.get(f"/{n.word}"), is_live=True)
    yield Sender("page: form of another site", lambda s, n: s.browser.send("POST", "/settings", n.text.encode()))
    yield Sender("web chat: message", _chat_on_page, is_live=True)
    yield Sender("web chat: refused", lambda s, n: s.browser.api("POST", "/chat", {n.word: n.text}), is_live=True)
    yield Sender(
        "web chat: file", lambda s, n: s.browser.upload(f"/chat/file?name={n.word}.txt", n.text.encode()), is_live=True
    )
    yield Sender(
        "web chat: file that is refused",
        lambda s, n: s.browser.upload(
            f"/chat/file?name={quote(n.text)}.pdf", sample_files.REFUSED["damaged.pdf"](n.word)
        ),
        is_live=True,
    )
    yield Sender(
        "web chat: rendered text", lambda s, n: s.browser.api("POST", "/render", {"texts": [n.text]}), is_live=True
    )


def by_design() -> Iterator[Sender]:
    """What the store keeps, and what was deleted from it."""
    yield Sender("a note", _add_note, is_live=True, kept=IN_STORE, tables=frozenset({"notes"}))
    yield Sender("a note that was replaced", _replace_note, is_live=True, kept=DELETED)
    yield Sender("a note that was deleted", _remove_note, is_live=True, kept=DELETED)
    yield Sender("a note that a command deleted", _change_notes_by_command, is_live=True, kept=DELETED)
    yield Sender("the archive of the account", _export, is_live=True)
    yield Sender("the name of a key", _name_key, is_live=True, kept=IN_STORE, tables=frozenset({"keys"}))
    yield Sender("an account that was erased", _erase_account, is_live=True, kept=DELETED)


def by_search() -> Iterator[Sender]:
    """Local search, or an engine and its pages, as the config has it."""
    yield Sender("search: question, results and pages", _search)


def by_index() -> Iterator[Sender]:
    """The documents of local search, which an index keeps."""
    yield Sender("search: indexed document", _index, kept=frozenset({Kept.INDEX}))


def by_commands() -> Iterator[Sender]:
    """Commands that run beside the service."""
    yield Sender("evaluation: message, answer and grader", _evaluate)


def after_kill() -> Iterator[Sender]:
    """The service that settles what the killed one left."""
    yield Sender("after the kill: a message", _chat)
