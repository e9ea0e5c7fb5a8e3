"""What a person does on the chat page, and the replies of a scripted upstream."""

from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import sign_in
from tests.loopback import ROLE, STOP, Sse, said, usage_chunk


def open_chat(page: Page, email: str) -> None:
    sign_in(page, email)
    page.goto("/chat")
    page.wait_for_selector("#chat[data-ready]")


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


def listed(page: Page, title: str) -> Locator:
    """A conversation of the list."""
    return page.locator("#conversations").get_by_role("listitem").filter(has_text=title)


def whole(text: str) -> Sse:
    return Sse([ROLE, said(text), STOP, usage_chunk()])
