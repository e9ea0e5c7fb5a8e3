"""Chromium, driven by Playwright, and a service for it to look at. Debian's package is installed if it is missing.

While Playwright runs, its thread has a running event loop. It ends with this folder's tests,
and none of them is asynchronous.
"""

import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.debian import find_or_install, installed
from tests.service import CREDIT_NANO, PASSWORD, Service
from tests.visitor import CSRF

SHOTS = Path(__file__).parents[4] / ".pytest_cache" / "screenshots"
TIMEOUT_MS = 60_000
LAUNCH_MS = 120_000
SHELL = "chromium-headless-shell"  # Chromium without its own windows: it takes less than half of the CPU time

AXE = Axe()
# Contrast takes most of the time, and is the same for elements that the style sheet cannot tell apart. So axe compares
# the colours of the first of each kind: same tag, attributes and neighbours, and so for all elements around it.
SERIOUS = """async () => {
    const seen = new Set(), firsts = [];
    const words = ["alt", "aria-label", "content", "for", "href", "id", "name", "title", "value"];
    const named = ({ name, value }) => words.includes(name) ? name : `${name}=${value}`;
    const kind = (element) => element ? [element.localName, ...[...element.attributes].map(named).sort()].join() : "";
    const isText = (node) => node.nodeType === Node.TEXT_NODE && node.data.trim();
    const visit = (element, around) => {
        const { previousElementSibling: before, nextElementSibling: after } = element;
        const path = `${around}/${kind(before)}+${kind(element)}+${kind(after)}`;
        const isShown = !element.children.length || [...element.childNodes].some(isText);
        if (isShown && !seen.has(path)) firsts.push(element);
        seen.add(path);
        for (const child of element.children) visit(child, path);
    };
    visit(document.body, "");
    const contrast = "color-contrast", resultTypes = ["violations"];
    const all = [
        await axe.run({ resultTypes, rules: { [contrast]: { enabled: false } } }),
        await axe.run({ include: firsts }, { resultTypes, runOnly: [contrast] }),
    ];
    return all.flatMap((run) => run.violations)
        .filter((one) => ["serious", "critical"].includes(one.impact))
        .flatMap((one) => one.nodes.map((node) => `${one.id}: ${node.html}`));
}"""

OpenPage = Callable[..., Page]
expect.set_options(timeout=TIMEOUT_MS)


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    path = installed(SHELL) or installed("chromium") or find_or_install(SHELL, SHELL)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"], timeout=LAUNCH_MS
        )
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium: Browser, service: Service) -> Iterator[OpenPage]:
    """Opens a page in a browser of its own. Keyword arguments are Playwright's of a new context, like a viewport.

    Nothing moves, so that nothing is measured on its way. The test fails if a script fails or the page asks for
    anything that is not ours.
    """
    contexts: list[BrowserContext] = []
    faults: list[str] = []
    base_url = f"http://127.0.0.1:{service.port}"

    def open_one(**options: object) -> Page:
        context = chromium.new_context(base_url=base_url, **{"reduced_motion": "reduce", **options})  # type: ignore[arg-type]
        context.set_default_timeout(TIMEOUT_MS)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda sent: _note_foreign(faults, sent.url, base_url))
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert faults == []


@pytest.fixture
def email(service: Service) -> str:
    """The address of an account of this test alone."""
    return service.create_account(CREDIT_NANO)


def _note_foreign(faults: list[str], url: str, base_url: str) -> None:
    if not url.startswith((base_url, "data:", "blob:", "about:")):
        faults.append(f"a request to {url}")


def sign_in(page: Page, email: str) -> None:
    """Send the form of the sign-in page, and keep its cookies for the page. To show the form takes a second of CPU."""
    form = page.request.get("/sign-in", timeout=TIMEOUT_MS)
    token = CSRF.search(form.text())
    assert token
    done = page.request.post(
        "/sign-in",
        form={"csrf": token[1], "email": email, "password": PASSWORD},
        headers={"origin": form.url.removesuffix("/sign-in")},
        max_redirects=0,
        timeout=TIMEOUT_MS,
    )
    assert done.status == 303, done.text()


def stop_clock(page: Page) -> None:
    """Stop the time of the page's scripts, so that what they show for some seconds stays."""
    page.clock.install()
    page.clock.pause_at(datetime.now(UTC) + timedelta(days=1))


def serious_findings(page: Page) -> list[str]:
    """What axe-core says would stop somebody from using the page, with the elements."""
    if not page.evaluate("'axe' in window"):
        page.add_init_script(AXE.axe_script)  # for the pages after this one
        page.evaluate(AXE.axe_script)
    return list(page.evaluate(SERIOUS))


def shoot(page: Page, name: str) -> None:
    """Keep a picture of the page, for people to look at. In CI there are none."""
    if os.environ.get("CI") == "true":
        return
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SHOTS / f"{name}.png", full_page=True)
