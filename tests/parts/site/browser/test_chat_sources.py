"""Sources in the chat, in a real browser: a list below the reply, markers that lead to it, and what was added."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from tests.loopback import LoopbackUpstream
from tests.parts.site.browser.chat_page import ask, export, open_chat, reload_chat, replies, whole
from tests.parts.site.browser.conftest import OpenPage, serious_findings, shoot, sign_in, stop_clock
from tests.parts.site.browser.looks import PHONE, each_scheme
from tests.service import Service

HEADER = "x-cadenza-grounding"
ADDED = "memory=2 search=5 attachments=1"
TEXT = "Refunds take 30 days [1][2], `list[1]` does not, and [9] is unknown.\n\nSee the form [4], and [1, 9; 2]."
FIRST_BLOCK = (
    "<p>Refunds take 30 days [1][2], <code>list[1]</code> does not, and [9] is unknown.</p>\n"
    '<div class="code"><pre><code>rows[1]</code></pre></div>\n'
)
LAST_BLOCK = "<p>See the <em>form [4]</em>, and [1, 9; 2].</p>\n"
SOURCES = [
    {"number": 1, "url": "https://travel.example/refunds?a=1&b=2", "title": "Refunds of travel costs"},
    {"number": 2, "url": "local:handbook/travel%20costs.md", "title": "Travel"},
    {"number": 3, "url": "javascript:alert(1)", "title": "<img src=x onerror=alert(1)>"},
    {"number": 4, "url": "http://user@evil.example/%22onclick=%22alert(1)", "title": "\u202etxt.exe"},
    {"number": 5, "url": "data:text/html,<script>alert(1)</script>", "title": " "},
    {
        "number": 6,
        "url": "local:delay.eml#attachment=pump.pdf%2C%20page%202",
        "title": "delay.eml, attachment pump.pdf",
    },
    {"number": 7, "url": "local:team/handbook/travel.md", "title": "travel.md"},
]
LONG = {"number": 8, "url": "https://a-very-long-name-of-a-host.example/", "title": "A title that is long, " * 6}
COST = {"class": "forte", "prompt_tokens": 1234, "cached_tokens": 0, "completion_tokens": 56, "cost": "0.00123"}
# What can be seen of the composer is in its box or below it, and nothing covers another part.
APART = """() => {
    const parts = [...document.querySelectorAll("#composer :is(textarea, button, select, label, .hint)")];
    const boxes = parts.map((one) => one.getBoundingClientRect()).filter((box) => box.width > 1);
    const around = document.getElementById("composer").getBoundingClientRect();
    const isInside = (one) => one.left >= around.left && one.right <= around.right && one.bottom <= around.bottom;
    const isApart = (one, other) =>
        one.right <= other.left || other.right <= one.left || one.bottom <= other.top || other.bottom <= one.top;
    return boxes.length > 5 && boxes.every(isInside) &&
        boxes.every((one, at) => boxes.slice(at + 1).every((other) => isApart(one, other)));
}"""
pytestmark = pytest.mark.slow(reason="a browser shows sources")


def event(type_: str, **fields: Any) -> str:
    return f"data: {json.dumps({'type': type_, **fields})}\n\n"


def answer(page: Page, sources: Sequence[Mapping[str, Any]], *, cited: bool = True) -> list[dict[str, str]]:
    """Let every chat be answered with these sources. Returns the headers of the requests, as they come."""
    seen = list[dict[str, str]]()
    body = "".join(
        [
            event("start", id="chatcmpl-1", **{"class": "forte"}),
            event("text", text=TEXT),
            event("block", html=FIRST_BLOCK, units=TEXT.index("See")),
            event("sources", sources=sources, cited=cited),
            event("finish", reason="stop"),
            event("usage", **COST),
            event("block", html=LAST_BLOCK, units=len(TEXT) - TEXT.index("See")),
            "data: [DONE]\n\n",
        ]
    )

    def fulfil(route: Route) -> None:
        seen.append(route.request.headers)
        headers = {"content-type": "text/event-stream", HEADER: ADDED}
        route.fulfill(headers=headers, body=body)

    page.route("**/platform/api/chat", fulfil)
    return seen


def test_sources_are_listed_and_linked(open_page: OpenPage, email: str) -> None:
    """Only web addresses are links; markers lead to the list, which is kept and copied; nothing of a stranger runs."""
    page = open_page(permissions=["clipboard-read", "clipboard-write"])
    opened = list[str]()
    page.on("dialog", lambda dialog: opened.append(dialog.message))
    open_chat(page, email)
    answer(page, SOURCES)
    ask(page, "How long do refunds take?")
    for _ in range(2):
        expect(replies(page)).to_contain_text("forte · 1,234 in, 56 out · $0.001230 · 2 notes, 5 sources, 1 file")
        check_sources(page)
        reload_chat(page)
    stop_clock(page)
    replies(page).get_by_role("button", name="Copy").last.click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()").splitlines()
    assert copied[-8:-5] == [
        "Sources:",
        "[1] Refunds of travel costs, https://travel.example/refunds?a=1&b=2",
        "[2] Travel, handbook/travel costs.md",
    ]
    assert copied[-2:] == ["[6] delay.eml, attachment pump.pdf", "[7] travel.md, team/handbook"]
    assert opened == []


def check_sources(page: Page) -> None:
    lines = replies(page).get_by_role("list", name="Sources").get_by_role("listitem")
    expect(lines).to_have_text(
        [
            "Refunds of travel costs travel.example",
            "Travel handbook/travel costs.md",
            "<img src=x onerror=alert(1)>",
            "\u202etxt.exe evil.example",
            "Without a title",
            "delay.eml, attachment pump.pdf",
            "travel.md team/handbook",
        ]
    )
    expect(page.locator(".thread :is(img, script, [onerror], [onclick])")).to_have_count(0)
    links = lines.get_by_role("link")
    expect(links).to_have_count(2)
    expect(links.first).to_have_attribute("href", "https://travel.example/refunds?a=1&b=2")
    for link in links.all():
        expect(link).to_have_attribute("target", "_blank")
        expect(link).to_have_attribute("rel", "noopener noreferrer nofollow")
    markers = replies(page).locator("a.cite")
    expect(markers).to_have_text(["[1]", "[2]", "[4]", "1", "2"])
    expect(replies(page).locator("span.cite")).to_have_text("[1, 9; 2]")
    assert len(set(markers.evaluate_all("all => all.map((one) => getComputedStyle(one).fontSize)"))) == 1
    expect(replies(page).locator("code")).to_have_text(["list[1]", "rows[1]"])
    expect(replies(page)).to_contain_text("and [9] is unknown")
    expect(replies(page)).to_contain_text("form [4], and [1, 9; 2].")
    address = page.url
    markers.nth(1).focus()
    page.keyboard.press("Enter")
    expect(lines.nth(1)).to_be_focused()
    assert page.url == address


def test_sources_are_exported_and_imported(open_page: OpenPage, email: str, tmp_path: Path) -> None:
    """Another browser shows the sources, cited or not, what was added and the names of files; a bad one is refused."""
    page = open_page(accept_downloads=True)
    open_chat(page, email)
    answer(page, SOURCES[:2], cited=False)
    page.get_by_label("Files to attach").set_input_files({"name": "a.txt", "mimeType": "text/plain", "buffer": b"a"})
    page.get_by_label("Memory", exact=True).uncheck()
    ask(page, "How long do refunds take?")
    expect(replies(page)).to_contain_text("2 notes")
    exported = json.loads(export(page, tmp_path).read("cadenza-chat.json"))
    page.get_by_role("button", name="Delete all").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete all").click()
    expect(page.get_by_text("What would you like to know?")).to_be_visible()
    message = next(one for one in exported["conversations"][0]["messages"].values() if one["role"] == "assistant")
    for sources in ([{"number": 1, "url": 1, "title": ""}], message["sources"]):
        message["sources"] = sources
        file = {"name": "export.json", "mimeType": "application/json", "buffer": json.dumps(exported).encode()}
        page.get_by_label("File to import").set_input_files(file)  # type: ignore[arg-type]
        if sources[0]["url"] == 1:
            expect(page.get_by_role("alert")).to_contain_text("A source of a reply is not as expected.")
    page.get_by_role("button", name="How long do refunds take?").click()
    found = replies(page).get_by_role("list", name="Found, but not cited")
    expect(found).to_contain_text("Refunds of travel costs")
    expect(replies(page).locator("a.cite").first).to_have_text("[1]")
    expect(replies(page)).to_contain_text("2 notes, 5 sources, 1 file")
    expect(page.get_by_role("article", name="You").get_by_role("listitem")).to_contain_text(["not kept"])
    expect(page.get_by_label("Memory", exact=True)).not_to_be_checked()


@pytest.fixture
def engine(service: Service) -> Iterator[None]:
    """An engine that is never asked, so that there is a switch for search."""
    toml = service.config.read_text()
    service.config.write_text(f'{toml}\n[grounding.search]\nengine = "searxng"\nurl = "http://127.0.0.1:9"\n')
    service.reload()
    yield
    service.config.write_text(toml)
    service.reload()


@pytest.mark.usefixtures("engine")
def test_search_and_memory_can_be_turned_off(open_page: OpenPage, email: str, upstream: LoopbackUpstream) -> None:
    """The switches belong to their conversation, are kept, and are sent; nothing of the composer covers them."""
    page = open_page()
    sign_in(page, email)
    open_chat(page, email)
    for width in (320, 390, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate(APART)
    seen = list[str | None]()
    page.on("request", lambda sent: seen.append(sent.headers.get(HEADER)) if sent.method == "POST" else None)
    upstream.always(whole("Yes."))
    search, memory = (page.get_by_label(part, exact=True) for part in ("Search", "Memory"))
    expect(memory).to_be_checked()
    memory.focus()
    page.keyboard.press("Space")
    ask(page, "First.")
    expect(replies(page)).to_contain_text("forte · ")
    reload_chat(page)
    expect(memory).not_to_be_checked()
    expect(search).to_be_checked()
    page.get_by_role("button", name="New conversation").click()
    expect(memory).to_be_checked()
    ask(page, "Second.")
    expect(replies(page)).to_contain_text("forte · ")
    page.get_by_role("button", name="First.").click()
    expect(memory).not_to_be_checked()
    search.uncheck()
    ask(page, "Third.")
    expect(replies(page)).to_have_count(2)
    expect(replies(page).last).to_contain_text("forte · ")
    assert seen == ["memory=off", None, "memory=off, search=off"]


@each_scheme
def test_sources_look_well(open_page: OpenPage, email: str, scheme: str) -> None:
    """On a phone and on a screen, nothing is wider than the page, and axe-core has no serious finding."""
    page = open_page(viewport=PHONE, color_scheme=scheme)
    open_chat(page, email)
    answer(page, [*SOURCES[:2], {**LONG, "number": 4}])
    ask(page, "How long do refunds take?")
    expect(replies(page)).to_contain_text("2 notes")
    for name, viewport in (("phone", PHONE), ("screen", {"width": 1280, "height": 800})):
        page.set_viewport_size(viewport)  # type: ignore[arg-type]
        assert page.evaluate("document.getElementById('main').scrollWidth <= innerWidth")
        assert serious_findings(page) == []
        shoot(page, f"chat-sources-{name}-{scheme}")
