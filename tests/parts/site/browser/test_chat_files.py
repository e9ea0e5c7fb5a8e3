"""Files of the chat in a real browser: attached, limited, sent with every turn, kept or not, and images."""

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import FilePayload, Locator, Page, expect

from tests.loopback import LoopbackUpstream
from tests.parts.site.browser.chat_page import (
    ask,
    choose,
    expect_replies,
    export,
    listed,
    open_chat,
    reload_chat,
    replies,
    whole,
)
from tests.parts.site.browser.conftest import OpenPage, serious_findings, shoot
from tests.parts.site.browser.looks import PHONE, each_scheme
from tests.service import Service
from tests.service_config import RouteSpec, ServiceSpec

NOTES = b"The vault opens at noon.\n"
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
# Files that come with an event: a drop on the conversation, or a paste into the message.
GIVE = """([kind, names, html]) => {
    const given = new DataTransfer();
    for (const name of names) given.items.add(new File(["Words of " + name], name, { type: "text/plain" }));
    if (html) given.setData("text/html", html);
    const fields = { bubbles: true, cancelable: true };
    if (kind === "paste") {
        const event = new ClipboardEvent("paste", { ...fields, clipboardData: given });
        return !document.getElementById("prompt").dispatchEvent(event);
    }
    const thread = document.getElementById("thread");
    thread.dispatchEvent(new DragEvent("dragover", { ...fields, dataTransfer: given }));
    const isMarked = document.querySelector(".dropping") !== null;
    return !thread.dispatchEvent(new DragEvent("drop", { ...fields, dataTransfer: given })) && isMarked;
}"""
# The browser does not show the body of a request that is made of Blobs.
NOTE_BODIES = """const send = window.fetch;
window.fetch = async (url, options) => {
    if (url.endsWith("/chat")) await window.noteBody(await new Response(options.body).text());
    return send(url, options);
};"""
COUNT_STORED = """async () => {
    const { name } = (await indexedDB.databases()).find(({ name }) => name.startsWith("cadenza-chat-files-"));
    const done = (request) => new Promise((resolve) => { request.onsuccess = () => resolve(request.result); });
    const database = await done(indexedDB.open(name));
    const count = await done(database.transaction("files").objectStore("files").count());
    database.close();
    return count;
}"""
INSIDE = """parts => parts.length && parts.map(part => part.getBoundingClientRect())
    .every(box => box.left >= 0 && box.right <= innerWidth)"""
pytestmark = pytest.mark.slow(reason="a browser sends files")


@pytest.fixture(scope="module")
def service(shared_upstream: LoopbackUpstream) -> Iterator[Service]:
    """Fortissimo takes images, forte does not."""
    routes = {"forte": [RouteSpec("loopback")], "fortissimo": [RouteSpec("loopback", more_toml="vision = true\n")]}
    with Service(ServiceSpec({"loopback": shared_upstream.base_url}, routes)) as running:
        yield running


def payload(name: str, content: bytes = NOTES, type_: str = "text/plain") -> FilePayload:
    return {"name": name, "mimeType": type_, "buffer": content}


def attach(page: Page, *files: FilePayload | Path) -> None:
    page.get_by_label("Files to attach").set_input_files(list(files))  # type: ignore[arg-type]


def attached(page: Page) -> Locator:
    return page.get_by_role("list", name="Attached files").get_by_role("listitem")


def chips(page: Page) -> Locator:
    """The files of the messages that are shown."""
    return page.get_by_role("article", name="You").get_by_role("listitem")


def sent_bodies(page: Page) -> list[dict[str, Any]]:
    """The bodies of the chat requests, as they are sent from now on. Call it before the page is opened."""
    bodies = list[dict[str, Any]]()
    page.expose_function("noteBody", lambda body: bodies.append(json.loads(body)))
    page.add_init_script(NOTE_BODIES)
    return bodies


def files_in(body: dict[str, Any]) -> dict[str, bytes]:
    """The files of a request: their names and what they contain."""
    contents = [message["content"] for message in body["messages"] if isinstance(message["content"], list)]
    parts = [part["file"] for content in contents for part in content if part["type"] == "file"]
    return {part["filename"]: base64.b64decode(part["file_data"].partition(",")[2]) for part in parts}


def test_files_go_with_every_turn(open_page: OpenPage, upstream: LoopbackUpstream, email: str) -> None:
    """A file is sent with its message and with all later ones, also after a reload, an edit and another reply."""
    upstream.always(whole("At noon."))
    page = open_page()
    bodies = sent_bodies(page)
    open_chat(page, email)
    attach(page, payload("notes.txt"), payload("other.txt", b"Other."))
    expect(attached(page)).to_contain_text(["notes.txt", "other.txt"])
    expect(attached(page).first).to_contain_text("25 B")
    expect(attached(page).first).to_contain_text("6 tokens · <$0.0001 a question")
    page.get_by_role("button", name="Remove other.txt").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Remove notes.txt")).to_be_focused()
    ask(page, "When?")
    expect(replies(page)).to_contain_text("1 file")
    expect(chips(page)).to_contain_text(["notes.txt"])
    expect(attached(page)).to_have_count(0)
    content = bodies[0]["messages"][-1]["content"]
    assert [part["type"] for part in content] == ["file", "text"]
    assert content[0]["file"]["file_data"].startswith("data:text/plain;base64,")
    assert 'name="notes.txt"' in json.dumps(upstream.requests[0].json["messages"][-1]).replace('\\"', '"')
    reload_chat(page)
    ask(page, "Are you sure?")
    expect(replies(page)).to_have_count(2)
    expect(replies(page).last).to_contain_text("1 file")
    page.get_by_role("button", name="Regenerate").first.click()
    expect_replies(page, 1)
    expect(replies(page)).to_contain_text("2 of 2")
    page.get_by_role("button", name="Edit").click()
    expect(attached(page)).to_contain_text(["notes.txt"])
    attach(page, payload("more.txt", b"More."))
    expect(attached(page)).to_have_count(2)
    ask(page, "When, and where?")
    expect(chips(page)).to_contain_text(["notes.txt", "more.txt"])
    expect(replies(page)).to_contain_text("2 files")
    assert [files_in(body) for body in bodies] == [{"notes.txt": NOTES}] * 3 + [
        {"notes.txt": NOTES, "more.txt": b"More."}
    ]
    page.get_by_label("Search conversations").fill("more.txt")
    expect(page.get_by_role("button", name="When?")).to_be_visible()


def test_limits_are_told_before_sending(
    open_page: OpenPage, upstream: LoopbackUpstream, email: str, tmp_path: Path
) -> None:
    """Files that are empty, too many, too large or of a type that is not taken are refused by name; all turns count."""
    upstream.always(whole("Yes."))
    page = open_page()
    open_chat(page, email)
    large = [tmp_path / name for name in ("first.bin", "second.bin")]
    for path in large:
        with path.open("wb") as file:
            file.truncate(12_000_001)
    problem = page.get_by_role("alert")
    attach(page, *large)
    expect(problem).to_have_text("second.bin (12 MB) is too large: all files together can have 24 MB.")
    expect(attached(page)).to_contain_text(["12 MB"])
    page.get_by_role("button", name="Remove first.bin").click()
    expect(page.get_by_role("button", name="Attach files")).to_be_focused()
    expect(problem).to_have_count(0)
    attach(page, payload("empty.txt", b""), payload("letter.rtf", b"{\\rtf1 x}"), payload("scan.png", b"", "image/png"))
    lines = (r"^empty\.txt is empty\.$", r"^scan\.png is empty\.$", r"^letter\.rtf cannot be read: it is RTF")
    expect(problem.get_by_role("listitem")).to_have_text([re.compile(line) for line in lines])
    attach(page, *[payload(f"{number}.txt") for number in range(18)])
    expect(attached(page)).to_have_count(18)
    page.get_by_role("button", name="Send").click()  # without a word
    expect(replies(page)).to_contain_text("18 files")
    attach(page, *[payload(f"more-{number}.txt") for number in range(5)])
    left_out = "Left out: more-2.txt, more-3.txt, more-4.txt."
    expect(problem).to_have_text(f"At most 20 files can be sent, with those of earlier messages. {left_out}")
    expect(attached(page)).to_contain_text(["more-0.txt", "more-1.txt"])
    expect(page.locator("#status")).to_have_text("2 files are attached.")
    page.locator("#status").evaluate("status => { status.textContent = ''; }")
    field = page.get_by_label("Files to attach")
    for images, words in (("1", "no files but images"), ("0", "no files")):
        field.evaluate("(field, images) => { field.accept = 'image/png'; field.dataset.images = images; }", images)
        assert page.evaluate(GIVE, ["drop", ["a.txt"], ""])
        expect(problem).to_have_text(f"a.txt: this service takes {words}.")
    attach(page, payload("pixel.png", PIXEL, "image/png"))
    expect(problem).to_have_text("pixel.png: this service takes no images.")
    expect(page.locator("#status")).to_be_empty()  # nothing new is attached


def test_files_are_dropped_and_pasted(open_page: OpenPage, upstream: LoopbackUpstream, email: str) -> None:
    """Both ways attach files, but not the picture of pasted text; a draft keeps its files; deleting removes them."""
    upstream.always(whole("Yes."))
    page = open_page()
    bodies = sent_bodies(page)
    open_chat(page, email)
    assert page.evaluate(GIVE, ["drop", ["a.txt", "b.txt"], ""])
    expect(attached(page)).to_contain_text(["a.txt", "b.txt"])
    assert page.locator(".dropping").count() == 0
    assert page.evaluate(GIVE, ["paste", ["c.txt"], ""])
    expect(attached(page)).to_have_count(3)
    assert not page.evaluate(GIVE, ["paste", ["d.txt"], "<b>text</b>"])
    ask(page, "Read them.")
    expect(replies(page)).to_contain_text("3 files")
    assert files_in(bodies[0]) == {name: f"Words of {name}".encode() for name in ("a.txt", "b.txt", "c.txt")}
    attach(page, payload("draft.txt"))
    expect(attached(page)).to_have_count(1)
    page.get_by_role("button", name="Edit").click()
    expect(attached(page)).to_have_count(3)
    page.keyboard.press("Escape")
    expect(attached(page)).to_contain_text(["draft.txt"])
    page.get_by_role("button", name="New conversation").click()
    expect(attached(page)).to_have_count(0)
    page.get_by_role("button", name="Read them.").click()
    expect(attached(page)).to_contain_text(["draft.txt"])
    assert page.evaluate(COUNT_STORED) == 3
    choose(page, "Read them.", "Delete")
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("button", name="Read them.")).to_have_count(0)
    assert page.evaluate(COUNT_STORED) == 0


def test_an_export_has_the_files(open_page: OpenPage, upstream: LoopbackUpstream, email: str, tmp_path: Path) -> None:
    """Names in the archive are apart and lead nowhere else; another browser imports the files and sends them."""
    upstream.always(whole("At noon."))
    page = open_page(accept_downloads=True)
    open_chat(page, email)
    attach(page, payload("notes.txt"))
    expect(attached(page)).to_have_count(1)
    ask(page, "When?")
    expect_replies(page, 1)
    assert page.evaluate(GIVE, ["drop", ["notes.txt", "..:<up>.txt", ".."], ""])
    expect(attached(page)).to_have_count(3)
    ask(page, "And now?")
    expect_replies(page, 2)
    expect(replies(page).last).to_contain_text("11 in")
    archive = export(page, tmp_path, "When?")
    names = ["files/notes.txt", "files/notes (2).txt", "files/..__up_.txt", "files/untitled"]
    assert archive.namelist() == [*names, "conversation.md", "cadenza-chat.json"]
    assert archive.read(names[0]) == NOTES
    assert archive.read(names[1]) == b"Words of notes.txt"
    text = archive.read("conversation.md").decode()
    assert text.startswith("# When?\n\n")
    assert "## You\n\n[notes.txt](<files/notes.txt>)\n\nWhen?\n\n## Reply (forte)\n\nAt noon.\n\n## You" in text
    other = open_page()
    bodies = sent_bodies(other)
    open_chat(other, email)
    damaged = tmp_path / "damaged.zip"
    damaged.write_bytes(Path(str(archive.filename)).read_bytes().replace(NOTES, NOTES[::-1]))
    other.get_by_label("File to import").set_input_files(damaged)
    expect(other.get_by_role("alert")).to_contain_text("The archive is damaged")
    other.get_by_label("File to import").set_input_files(str(archive.filename))
    listed(other, "When?").get_by_role("button", name="When?").click()
    expect(chips(other)).to_have_count(4)
    ask(other, "And here?")
    expect_replies(other, 3)
    assert len(files_in(bodies[0])) == 3
    assert other.evaluate(COUNT_STORED) == 4


def test_a_file_that_does_not_fit_is_not_kept(
    open_page: OpenPage, upstream: LoopbackUpstream, service: Service, email: str
) -> None:
    """If the browser has no room, the conversation is kept without the file, and the next turn asks about it."""
    upstream.always(whole("Yes."))
    page = open_page()
    bodies = sent_bodies(page)
    open_chat(page, email)
    quota = {"origin": f"http://127.0.0.1:{service.port}", "quotaSize": 1_000_000}
    page.context.new_cdp_session(page).send("Storage.overrideQuotaForOrigin", quota)
    attach(page, payload("large.txt", NOTES * 100_000))
    ask(page, "When?")
    expect(replies(page)).to_contain_text("1 file")
    expect(chips(page)).to_contain_text(["not kept"])
    ask(page, "And then?")
    expect(replies(page)).to_have_count(2)
    expect(replies(page).last).to_contain_text("1 file")
    reload_chat(page)
    expect(chips(page)).to_contain_text(["not kept"])
    ask(page, "Where?")
    question = page.get_by_role("dialog", name="Send without the files?")
    expect(question).to_contain_text("This browser did not keep large.txt.")
    question.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Send again").click()
    question.get_by_role("button", name="Send without").click()
    expect_replies(page, 3)
    ask(page, "Thank you.")
    expect_replies(page, 4)
    assert [len(files_in(body)) for body in bodies] == [1, 1, 0, 0]


def test_an_image_needs_a_class_that_takes_it(open_page: OpenPage, upstream: LoopbackUpstream, email: str) -> None:
    """A small picture is shown. The refusal names the class; the message stays, and can be changed or sent again."""
    upstream.always(whole("A pixel."))
    page = open_page()
    open_chat(page, email)
    attach(page, payload("pixel.png", PIXEL, "image/png"), payload("notes.txt"))
    expect(attached(page).first.locator("canvas")).to_be_visible()
    ask(page, "What is this?")
    alert = page.get_by_role("alert")
    expect(alert).to_have_text("forte takes no images. Remove them, or choose fortissimo.")
    expect(alert.get_by_role("button")).to_have_count(0)
    expect(chips(page).locator("canvas")).to_have_count(1)
    shoot(page, "chat-image-refused")
    expect(chips(page)).to_contain_text(["pixel.png", "notes.txt"])
    assert upstream.requests == []
    expect(page.get_by_role("button", name="Send again")).to_have_count(0)  # it would be refused again
    page.get_by_label("Class").select_option("fortissimo")
    page.get_by_role("button", name="Send again").click()
    expect(replies(page)).to_contain_text("fortissimo")
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(PIXEL).decode()}"}}
    assert image in upstream.requests[-1].json["messages"][-1]["content"]
    page.get_by_label("Class").select_option("forte")
    ask(page, "Really?")
    expect(alert).to_be_visible()
    page.get_by_role("button", name="Edit").first.click()
    page.get_by_role("button", name="Remove pixel.png").click()
    page.get_by_role("button", name="Send", exact=True).click()
    expect(replies(page)).to_contain_text("forte · ")
    expect(chips(page)).to_contain_text(["notes.txt"])


@each_scheme
def test_files_look_well(open_page: OpenPage, upstream: LoopbackUpstream, email: str, scheme: str) -> None:
    """On a phone and on a screen, nothing is wider than the page, and axe-core has no serious finding."""
    upstream.always(whole("Both say **noon**."))
    page = open_page(viewport=PHONE, color_scheme=scheme)
    open_chat(page, email)
    attach(page, payload("notes.txt"), payload("a-name-that-is-much-too-long-for-the-width-of-a-phone-2026-11-16.csv"))
    ask(page, "What do these say?")
    expect(replies(page)).to_contain_text("2 files")
    attach(page, payload("minutes of the meeting.txt"), payload("empty.txt", b""), payload("plan.md"))
    expect(attached(page)).to_have_count(2)
    page.get_by_label("Message", exact=True).fill("And these?")
    for name, viewport in (("phone", PHONE), ("screen", {"width": 1280, "height": 800})):
        page.set_viewport_size(viewport)  # type: ignore[arg-type]
        assert page.evaluate("document.getElementById('main').scrollWidth <= innerWidth")
        assert page.locator(".files li").evaluate_all(INSIDE)
        assert serious_findings(page) == []
        shoot(page, f"chat-files-{name}-{scheme}")
