"""What a person does on the chat page, and the replies of a scripted upstream."""

from pathlib import Path
from zipfile import ZipFile

from playwright.sync_api import Locator, Page, expect

from tests.loopback import ROLE, STOP, Sse, said, usage_chunk
from tests.parts.site.browser.conftest import sign_in

TURN_TITLES_OFF = """() => {
    const { account } = document.getElementById("chat").dataset;
    localStorage.setItem(`cadenza-chat-${account}:titles`, "off");
}"""


def open_chat(page: Page, email: str, *, titles: bool = False) -> None:
    """Without titles, the upstream gets no request but those of the test."""
    sign_in(page, email)
    page.goto("/chat")
    page.wait_for_selector("#chat[data-ready]")
    if not titles:
        page.evaluate(TURN_TITLES_OFF)


def reload_chat(page: Page) -> None:
    page.reload()
    page.wait_for_selector("#chat[data-ready]")


def ask(page: Page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def replies(page: Page) -> Locator:
    return page.get_by_role("article", name="Reply")


def expect_replies(page: Page, count: int) -> None:
    """Wait until so many replies are shown and the last one has ended: a reply is shown before it is asked for."""
    expect(replies(page)).to_have_count(count)
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()


def choose(page: Page, title: str, action: str) -> None:
    """Choose from the menu of a conversation."""
    listed(page, title).get_by_role("button", name="More").click()
    page.get_by_role("button", name=action, exact=True).click()


def rename(page: Page, title: str, new: str) -> None:
    choose(page, title, "Rename")
    page.get_by_role("textbox", name="Title").fill(new)
    page.keyboard.press("Enter")


def export(page: Page, path: Path, title: str = "") -> ZipFile:
    """The archive of a conversation, or of all. Both have been checked."""
    with page.expect_download() as download:
        if title:
            choose(page, title, "Export")
        else:
            page.get_by_text("Kept in this browser only").click()
            page.get_by_role("button", name="Export", exact=True).click()
    download.value.save_as(path / download.value.suggested_filename)
    archive = ZipFile(path / download.value.suggested_filename)
    assert archive.testzip() is None
    return archive


def listed(page: Page, title: str) -> Locator:
    """A conversation of the list."""
    return page.locator("#conversations").get_by_role("listitem").filter(has_text=title)


def whole(text: str) -> Sse:
    return Sse([ROLE, said(text), STOP, usage_chunk()])
