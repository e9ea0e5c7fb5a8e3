"""`python -m tests.parts.site.browser.pictures`: takes the pictures of docs/guides again, of a real service.

Run it when the operator's pages change. A picture has few colours, so that it takes less than 60 kB.
"""

import io
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from tests.debian import find_or_install
from tests.loopback import LoopbackUpstream, Status, Whole
from tests.parts.site.browser.conftest import SHELL, TIMEOUT_MS, sign_in
from tests.parts.site.web.operators import make_operator
from tests.raw_client import RawClient
from tests.service import EMAIL, Service
from tests.service_config import RouteSpec, ServiceSpec

FOLDER = Path(__file__).parents[4] / "docs" / "guides"
CREDIT_NANO = 500 * 10**9
COLOURS = 48
WIDTH_PX = 1000
KEYS = {"alice": (14, "20.00"), "bob": (5, "20.00"), "nightly build": (30, "5.00")}  # requests, and the cap
PROMPT = "a page of a long report " * 10_000
USAGE = {"prompt_tokens": 50_000, "completion_tokens": 400, "total_tokens": 50_400}


def spec(acme: str, beta: str) -> ServiceSpec:
    costs = 'cost_input = "0.60"\ncost_output = "1.80"\n'
    main = RouteSpec("acme", "acme-large", more_toml=costs)
    routes = [main, RouteSpec("beta", "beta-large", order=1, more_toml=costs)]
    others = {"mezzo": [RouteSpec("acme", "acme-small")], "fortissimo": [RouteSpec("acme", "acme-huge")]}
    return ServiceSpec({"acme": acme, "beta": beta}, {"forte": routes, **others}, limits={"concurrency": 64})


def picture(page: Page, path: str, name: str, height_px: int) -> None:
    """The top of a page, as a PNG with a palette."""
    page.set_viewport_size({"width": WIDTH_PX, "height": height_px})
    page.goto(path)
    page.wait_for_load_state("networkidle")
    image = Image.open(io.BytesIO(page.screenshot())).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    image.save(FOLDER / f"{name}.png", optimize=True)


def take(page: Page, service: Service, acme: LoopbackUpstream) -> None:
    for name, (requests, cap) in KEYS.items():
        made = service.cli("key", "create", "--account", EMAIL, "--name", name, "--cap", cap, "--cap-period", "month")
        client = RawClient(service.port, made.stdout.strip())
        replies = [client.chat(model="forte", messages=[{"role": "user", "content": PROMPT}]) for _ in range(requests)]
        assert {reply.status for reply in replies} == {200}
    service.cli("refund", replies[-1].json["id"], "--reason", "an answer in another language")
    sign_in(page, EMAIL)
    picture(page, "/operator/classes", "provider", 900)
    picture(page, "/keys", "team", 545)
    month = str(page.evaluate("new Date().toISOString().slice(0, 7)"))
    picture(page, f"/operator/months/{month}", "month", 760)
    acme.always(Status(401, b'{"error": {"message": "Incorrect API key provided"}}'))
    request_id = RawClient(service.port, service.key).chat(model="forte").headers["x-request-id"]
    assert RawClient(service.port, service.key).chat(model="mezzo").status == 502
    picture(page, "/operator", "incident", 620)
    picture(page, f"/operator/requests/{request_id}", "request", 700)


def main() -> None:
    with LoopbackUpstream() as acme, LoopbackUpstream() as beta:
        acme.always(Whole(["It ", "is ", "about ", "sugar."], USAGE))
        with Service(spec(acme.base_url, beta.base_url), CREDIT_NANO) as service, sync_playwright() as driver:
            make_operator(service, EMAIL)
            browser = driver.chromium.launch(executable_path=find_or_install(SHELL, SHELL), args=["--no-sandbox"])
            context = browser.new_context(base_url=f"http://127.0.0.1:{service.port}", reduced_motion="reduce")
            context.set_default_timeout(TIMEOUT_MS)
            take(context.new_page(), service, acme)
            browser.close()


if __name__ == "__main__":
    main()
