"""The first day of a new account, from its sign-up to its chats, with the embedded model."""

import re
from collections.abc import Iterator

import openai
import pytest
from playwright.sync_api import expect

from tests.parts.site.browser.conftest import OpenPage
from tests.service import Service
from tests.service_config import ServiceSpec

ANSWER_MS = 240_000  # the embedded model on a busy machine
OPEN = '[platform]\nsign_up = "open"\nopening_credit = "5.00"\n'
EMAIL = "new@example.org"
PASSWORD = "a few words that I keep"
QUESTION = "Explain photosynthesis in one sentence."
# Presses Escape at the first words of the second reply: the page sees them before the model can have ended.
STOP_AT_FIRST_WORDS = """() => {
    const observer = new MutationObserver(() => {
        const reply = document.querySelectorAll("article[aria-label=Reply]")[1];
        if (!/\\w+ \\w+ \\w+/.test(reply?.querySelector(".open-block")?.textContent ?? "")) return;
        observer.disconnect();
        document.getElementById("prompt").dispatchEvent(new KeyboardEvent("keydown", { key: "Escape", bubbles: true }));
    });
    observer.observe(document.getElementById("thread"), { childList: true, subtree: true, characterData: true });
}"""
pytestmark = pytest.mark.slow(reason="a whole first day in a browser")


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    """Every class on the embedded model; everybody may sign up."""
    with Service(ServiceSpec({}, {}, more_toml=OPEN)) as running:
        yield running


def ask_by_api(service: Service, key: str) -> str | None:
    with openai.OpenAI(base_url=service.base_url, api_key=key, max_retries=0) as client:
        reply = client.chat.completions.create(
            model="auto", messages=[{"role": "user", "content": QUESTION}], max_tokens=8
        )
        content: str | None = reply.choices[0].message.content
        return content


@pytest.mark.timeout(900)
def test_the_first_day(open_page: OpenPage, service: Service) -> None:
    """Sign up, make a key for openai-python, see its usage, revoke it; then chat: streamed, stopped and edited."""
    page = open_page()
    page.goto("/sign-up")
    page.get_by_label("E-mail").fill(EMAIL)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Create the account").click()
    page.wait_for_url(lambda url: "/sign-up" not in url)

    page.goto("/keys/new")
    page.get_by_label("Name").fill("laptop")
    page.get_by_label("inference").check()
    page.get_by_role("button", name="Create the key").click()
    key = page.locator("#secret").inner_text()
    assert ask_by_api(service, key)
    page.goto("/usage")
    expect(page.get_by_role("region", name="Usage by key")).to_contain_text("laptop")
    page.goto("/keys")
    page.get_by_role("link", name="laptop").click()
    page.get_by_text("Revoke this key").click()
    page.get_by_role("button", name="Revoke it now").click()
    expect(page.get_by_role("status")).to_contain_text("The key is revoked")
    with pytest.raises(openai.AuthenticationError):
        ask_by_api(service, key)

    page.goto("/chat")
    page.wait_for_selector("#chat[data-ready]")
    message, replies = page.get_by_label("Message", exact=True), page.get_by_role("article", name="Reply")
    message.fill(QUESTION)
    message.press("Enter")
    expect(replies.first).to_contain_text(re.compile(r"forte · \d+ in, \d+ out · \$0\.0"), timeout=ANSWER_MS)
    page.evaluate(STOP_AT_FIRST_WORDS)
    message.fill("Tell me a long story about the sea, with many details.")
    message.press("Enter")
    expect(replies.nth(1)).to_contain_text("Stopped by you · forte", timeout=ANSWER_MS)
    expect(replies.nth(1)).to_contain_text(re.compile(r"\w+ \w+ \w+"))
    message.press("ArrowUp")
    message.fill("Say hello.")
    message.press("Enter")
    expect(page.get_by_role("article", name="You").nth(1)).to_contain_text("Say hello.")
    expect(replies.nth(1)).to_contain_text(re.compile(r"forte · \d+ in, \d+ out"), timeout=ANSWER_MS)
