"""From a new key to its end, in a real browser and with a real client."""

import json
import re

import openai
import pytest
from playwright.sync_api import Page, expect

from tests.parts.site.browser.conftest import OpenPage, serious_findings, shoot, sign_in
from tests.parts.site.browser.looks import LOOKS, each_look
from tests.service import Service

MESSAGES = [{"role": "user", "content": "Say hello."}]
pytestmark = pytest.mark.slow(reason="a browser manages keys")


def client_of(service: Service, key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=service.base_url, api_key=key, max_retries=0)


def chat(service: Service, key: str, class_id: str = "forte") -> None:
    with client_of(service, key) as client:
        client.chat.completions.create(model=class_id, messages=MESSAGES)


def tab_to(page: Page, name: str) -> None:
    """Move the focus forward by keyboard until a part with this name has it."""
    for _ in range(60):
        page.keyboard.press("Tab")
        focused = page.evaluate("(document.activeElement.labels?.[0] ?? document.activeElement).innerText")
        if str(focused).strip().startswith(name):
            return
    raise AssertionError(f"the focus does not reach {name}")


def check_page(page: Page, name: str) -> None:
    """Keep a picture of the page, and look for what would stop somebody from using it."""
    shoot(page, name)
    assert serious_findings(page) == []


def test_a_key_lives_and_ends_by_keyboard_alone(open_page: OpenPage, service: Service, email: str) -> None:
    """A scoped key is created, used by openai-python, seen on the usage page and revoked: the next request gets 401."""
    page = open_page()
    sign_in(page, email)
    page.goto("/keys")
    tab_to(page, "Create a key")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Create a key")).to_be_visible()
    expect(page.get_by_label("Name")).to_be_focused()
    page.keyboard.type("laptop")
    for unwanted in ("models", "usage"):
        tab_to(page, unwanted)
        page.keyboard.press("Space")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Your new key")).to_be_visible()
    key = page.locator("#secret").inner_text()
    assert key not in page.url

    chat(service, key)
    with client_of(service, key) as client, pytest.raises(openai.PermissionDeniedError):
        client.models.list()
    page.goto("/usage")
    expect(page.get_by_role("img", name=re.compile("Cost by day and class"))).to_be_visible()
    expect(page.get_by_role("region", name="Usage by key")).to_contain_text("laptop")

    page.goto("/keys")
    tab_to(page, "laptop")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="laptop")).to_be_visible()
    tab_to(page, "Revoke this key")
    page.keyboard.press("Enter")
    tab_to(page, "Revoke it now")
    page.keyboard.press("Enter")
    expect(page.get_by_role("status")).to_contain_text("The key is revoked")
    with pytest.raises(openai.AuthenticationError):
        chat(service, key)


def test_the_new_key_and_its_snippets_are_copied(open_page: OpenPage, email: str) -> None:
    """The buttons put the key and the snippet of the chosen tab on the clipboard, with the key filled in."""
    page = open_page(permissions=["clipboard-read", "clipboard-write"])
    sign_in(page, email)
    page.goto("/keys/new")
    page.get_by_role("button", name="Create the key").click()
    key = page.locator("#secret").inner_text()
    page.get_by_role("button", name="Copy the key").click()
    page.wait_for_function("key => navigator.clipboard.readText().then((text) => text === key)", arg=key)
    page.get_by_text("Python", exact=True).click()
    page.get_by_role("button", name="Copy the Python code").click()
    page.wait_for_function("() => navigator.clipboard.readText().then((text) => text.startsWith('from openai'))")
    assert f'api_key="{key}"' in str(page.evaluate("navigator.clipboard.readText()"))
    page.get_by_text("Claude Code", exact=True).click()
    page.get_by_role("button", name="Copy the settings of Claude Code").click()
    page.wait_for_function("() => navigator.clipboard.readText().then((text) => text.startsWith('{'))")
    assert json.loads(page.evaluate("navigator.clipboard.readText()"))["env"]["ANTHROPIC_AUTH_TOKEN"] == key
    assert serious_findings(page) == []  # a wide text can be scrolled by keyboard also if its tab was hidden at first


@each_look
def test_the_pages_are_accessible(open_page: OpenPage, service: Service, email: str, look: str) -> None:
    """axe-core has no serious finding on the pages of keys and usage; their pictures are kept for people to look at."""
    for class_id in ("mezzo", "forte", "fortissimo"):
        chat(service, service.create_key(email), class_id)
    page = open_page(**LOOKS[look])
    sign_in(page, email)
    for path in ("keys", "usage", "keys/new"):
        page.goto(f"/{path}")
        check_page(page, f"{path.replace('/', '-')}-{look}")
    page.get_by_role("button", name="Create the key").click()
    expect(page.get_by_role("heading", name="Your new key")).to_be_visible()
    check_page(page, f"key-created-{look}")
    page.goto("/keys")
    page.get_by_role("region", name="Keys").get_by_role("link").first.click()
    expect(page.get_by_role("heading", name="Name and limits")).to_be_visible()
    check_page(page, f"key-{look}")
