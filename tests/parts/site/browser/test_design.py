"""The visual language in a real browser: accessible, narrow enough for a phone, light, and usable by keyboard."""

from pathlib import Path

import pytest
from playwright.sync_api import Dialog, Page, Route, expect

from cadenza.core.records import Cap
from tests.account import Account
from tests.loopback import Good, LoopbackUpstream
from tests.parts.site.browser.conftest import TIMEOUT_MS, OpenPage, serious_findings, shoot, sign_in, stop_clock
from tests.parts.site.browser.looks import LOOKS, PHONE, each_look
from tests.parts.site.unit.test_render import AMOUNTS
from tests.parts.site.web.operators import account_id_of, make_operator
from tests.service import CREDIT_NANO, Service

PARTS = Path(__file__).parent
PATHS = ("/", "/sign-in", "/no-such-page", "/gallery", "/conversation")
RICH = ("/keys", "/usage", "/credit", "/settings/security")  # tables, charts, forms and badges between them
OTHERS = (
    "/keys/new",
    "/settings",
    "/usage/activity",
    "/settings/tokens/new",
    "/docs/platform/keys",
    "/credit/statement?range=month",
)
LIGHT = (*RICH, "/docs", "/docs/platform", "/credit/statement?range=month", "/operator", "/chat")
PAGE_BYTES_MAX = 130_000  # the reference of the API is the largest
DECODED_BYTES = """() => ["navigation", "resource"].flatMap((kind) => performance.getEntriesByType(kind))
    .filter((entry) => !entry.name.endsWith(".woff2"))
    .reduce((sum, entry) => sum + entry.decodedBodySize, 0)"""
FONTS = """status => document.fonts.ready.then(() => [...document.fonts]
    .filter((font) => font.status === status).map((font) => `${font.family} ${font.style}`))"""
DOLLARS = """async (amounts) => {
    const { dollars } = await import(document.querySelector("script[src$='/page.js']").src);
    return amounts.map(([nano, digits]) => dollars(BigInt(nano), digits ?? undefined));
}"""
FOCUSED = "() => document.activeElement.textContent.trim() || document.activeElement.id"
pytestmark = pytest.mark.slow(reason="a browser looks at every page")


def show_parts(page: Page) -> None:
    """Let /gallery and /conversation answer with the sign-in page whose content is replaced by our parts."""

    def answer(route: Route) -> None:
        response = route.fetch(url=route.request.url.rpartition("/")[0] + "/sign-in", timeout=TIMEOUT_MS)
        head, _, rest = response.text().partition('<main id="main" tabindex="-1">')
        parts = (PARTS / f"{route.request.url.rpartition('/')[2]}.html").read_text()
        body = f'{head}<main id="main" tabindex="-1">{parts}</main>{rest.partition("</main>")[2]}'
        route.fulfill(response=response, body=body)

    for name in ("gallery", "conversation"):
        page.route(f"**/{name}", answer)


@each_look
def test_parts_are_accessible(open_page: OpenPage, look: str) -> None:
    """axe-core has no serious finding on our pages and on every part, in both schemes and on a phone."""
    page = open_page(**LOOKS[look])
    show_parts(page)
    for path in PATHS:
        page.goto(path)
        assert serious_findings(page) == [], path
        shoot(page, f"{path.strip('/') or 'home'}-{look}")


@pytest.fixture
def owner(service: Service, upstream: LoopbackUpstream) -> str:
    """The address of an operator who has used a key with a cap."""
    upstream.always(Good("Yes."))
    account = Account(service, CREDIT_NANO)
    service.create_key(account.email, ("inference",), Cap(CREDIT_NANO, "month"), burst=5)
    account.api.chat()
    make_operator(service, account.email)
    return account.email


def test_pages_of_an_account(open_page: OpenPage, service: Service, owner: str) -> None:
    """Forms, the reference and the operator's pages of an account and a request have no serious finding of axe-core."""
    [charge] = service.ledger.charges_of(owner)
    of_operator = (f"accounts/{account_id_of(service, owner)}", f"requests/{charge['completion_id']}")
    page = open_page()
    sign_in(page, owner)
    for path in (*OTHERS, *(f"/operator/{one}" for one in of_operator)):
        page.goto(path)
        shoot(page, path.partition("?")[0].strip("/").replace("/", "-")[:30])
        assert serious_findings(page) == [], path


def test_pages_with_data_are_light_and_narrow(open_page: OpenPage, owner: str) -> None:
    """Pages with data have less than 130 kB, and do not scroll sideways at 320 pixels."""
    page = open_page(viewport={"width": 320, "height": 640})
    sign_in(page, owner)
    for path in LIGHT:
        page.goto(path, wait_until="networkidle" if path == "/chat" else "load")
        assert page.evaluate(DECODED_BYTES) < PAGE_BYTES_MAX, path
        assert page.evaluate("document.documentElement.scrollWidth") <= 320, path


def test_rich_pages_in_the_dark_and_on_a_phone(open_page: OpenPage, owner: str) -> None:
    """The pages with most parts have no serious finding in the dark scheme and at the size of a phone."""
    page = open_page(viewport=PHONE)
    sign_in(page, owner)
    for path in RICH:
        page.goto(path)
        shoot(page, f"{path.strip('/').replace('/', '-')}-phone")
        page.emulate_media(color_scheme="dark")
        assert serious_findings(page) == [], path
        page.emulate_media(color_scheme="light")
        assert serious_findings(page) == [], path


def test_a_table_is_a_list_on_a_phone(open_page: OpenPage, owner: str) -> None:
    """On a phone every cell of a wide table is on the screen, with the name of its column."""
    page = open_page(viewport=PHONE)
    sign_in(page, owner)
    page.goto("/keys")
    cell = page.get_by_role("row").filter(has_text="test").first.get_by_role("cell").last
    expect(cell).to_have_attribute("data-column", "Expires")
    box = cell.bounding_box()
    assert box is not None
    assert box["x"] + box["width"] <= 390


def test_nothing_is_wider_than_a_small_phone(open_page: OpenPage) -> None:
    """At 320 pixels no page scrolls sideways, nor has with all it loads, uncompressed and without fonts, 130 kB."""
    page = open_page(viewport={"width": 320, "height": 640})
    show_parts(page)
    for path in PATHS:
        page.goto(path, wait_until="networkidle")
        assert page.evaluate("document.documentElement.scrollWidth") <= 320, path
        assert 10_000 < page.evaluate(DECODED_BYTES) < PAGE_BYTES_MAX, path


def test_every_font_is_used(open_page: OpenPage) -> None:
    """The first page and a conversation with a formula need all of them between them, and none fails to load."""
    page = open_page()
    show_parts(page)
    loaded, unloaded = set[str](), set[str]()
    for path in ("/", "/conversation"):
        page.goto(path, wait_until="networkidle")
        loaded.update(page.evaluate(FONTS, "loaded"))
        unloaded.update(page.evaluate(FONTS, "unloaded"))
        assert page.evaluate(FONTS, "error") == []
    assert unloaded - loaded == set()
    assert len(loaded) == 6


def test_the_keyboard_follows_the_page(open_page: OpenPage) -> None:
    """The tab key goes through the first page from top to bottom, and the first stop skips the bar."""
    page = open_page()
    page.goto("/")
    assert "Cadenza" in page.title()
    seen = []
    for _ in range(9):
        page.keyboard.press("Tab")
        seen.append(page.evaluate(FOCUSED))
    bar = ["Skip to the content", "Cadenza", "Docs", "Sign in"]
    assert seen == [*bar, "Copy", "Sign in", "Read the docs", "snippet-python", "Copy"]
    page.goto("/")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()


def test_snippets_change_by_arrow_key(open_page: OpenPage) -> None:
    """The snippets of the first page are radio buttons: an arrow key shows the next language."""
    page = open_page()
    page.goto("/")
    page.get_by_label("Python").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#code-node")).to_be_visible()
    expect(page.locator("#code-python")).to_be_hidden()


def test_parts_act(open_page: OpenPage) -> None:
    """Times are local, copy buttons copy, dialogs open and close, a danger is asked about, a theme shows at once."""
    page = open_page(timezone_id="Asia/Tokyo", locale="en-GB", permissions=["clipboard-read", "clipboard-write"])
    show_parts(page)
    page.goto("/gallery")
    expect(page.locator("time")).to_have_text("15 Nov 2026, 19:00")

    stop_clock(page)
    page.get_by_role("button", name="Copy").first.click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == page.locator("#secret").text_content()
    page.clock.resume()

    page.get_by_role("button", name="Open the dialog").click()
    expect(page.get_by_role("dialog", name="Rename the key")).to_be_visible()
    assert serious_findings(page) == []
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("dialog")).to_be_hidden()

    questions: list[str] = []

    def refuse(dialog: Dialog) -> None:
        questions.append(dialog.message)
        dialog.dismiss()

    for typed in ("", "laptop"):
        page.once("dialog", refuse)
        page.locator("form[data-confirm] input").fill(typed)
        page.locator("form[data-confirm] button").click()
    assert (questions, page.url.endswith("/gallery")) == (["Revoke this key?", "Revoke laptop?"], True)

    light = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    page.get_by_label("Dark").check()
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") != light


def test_scripts_show_money_as_the_server_does(open_page: OpenPage) -> None:
    """The same amounts are the same texts."""
    page = open_page()
    page.goto("/sign-in")
    shown = page.evaluate(DOLLARS, [[str(amount_nano), digits] for amount_nano, digits, _ in AMOUNTS])
    assert shown == [text for _, _, text in AMOUNTS]


def test_the_menu_of_a_phone(open_page: OpenPage, service: Service) -> None:
    """On a phone the links are in a menu that opens by its button and closes by Escape."""
    page = open_page(viewport=PHONE)
    sign_in(page, service.create_account(10**9))
    page.goto("/settings")
    keys = page.get_by_role("link", name="Keys")
    expect(keys).to_be_hidden()
    page.get_by_role("button", name="Menu").click()
    expect(keys).to_be_visible()
    assert serious_findings(page) == []
    shoot(page, "menu-phone")
    page.keyboard.press("Escape")
    expect(keys).to_be_hidden()


def test_no_select_is_clipped(open_page: OpenPage, service: Service) -> None:
    """Every select is as wide as its longest option needs, on a phone too, with the longest class preferred."""
    email = service.create_account(CREDIT_NANO, "fortissimo")
    page = open_page(viewport=PHONE)
    sign_in(page, email)
    missing_px = """select => {
        const unclipped = select.parentNode.appendChild(select.cloneNode(true));
        unclipped.style.cssText = "position: absolute; width: max-content; max-width: none";
        const missing = unclipped.offsetWidth - select.offsetWidth;
        unclipped.remove();
        return missing;
    }"""
    for path in ("/chat", "/keys/new"):
        page.goto(path)
        page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        selects = page.locator("select:visible").all()
        assert [(path, one.evaluate(missing_px)) for one in selects] == [(path, 0)] * len(selects)
        assert selects
