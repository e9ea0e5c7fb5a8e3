"""Content at the site, for the retention audit: pages, sign-in and the web chat, on a site without TLS."""

from cadenza import clock
from cadenza.core.records import COMMAND_LINE
from cadenza.parts.retention.canaries import TEXT, WORD
from cadenza.parts.retention.case import CaseStep, PartAudit, RetentionFixture, chat, site
from cadenza.parts.retention.client import FORM
from cadenza.parts.retention.config import PrivateConfig, Table
from cadenza.parts.site.accounts import set_password
from cadenza.parts.site.settings import SITE_KEY_VARIABLE

KEPT = ("opening_credit", "opening_credits_per_hour")  # not its address: the audit has no TLS


def sign_in(email: str, password: str, **headers: str) -> list[CaseStep]:
    fields = {"email": email, "password": password}
    return [site("GET /sign-in"), site("POST /sign-in", fields, {**FORM, **headers})]


SITE: dict[str, list[CaseStep]] = {
    "sign-in: unknown address and wrong password": sign_in("{word}@audit.invalid", TEXT),
    "sign-in: wrong password": sign_in("{email}", TEXT),
    "sign-in: User-Agent": sign_in("{email}", "{password}", **{"user-agent": WORD}),
    "page: query": [site("GET /sign-in?next=/{word}&q={word}")],
    "page: unknown path": [site("GET /{word}")],
    "page: form of another site": [site("POST /settings", lambda canary: canary.text.encode(), {"x-cadenza-csrf": ""})],
    "web chat: message": [site("GET /settings"), site("POST /platform/api/chat", chat(TEXT, stream=True))],
    "web chat: refused": [site("POST /platform/api/chat", {WORD: TEXT})],
    "web chat: rendered text": [site("POST /platform/api/render", {"texts": [TEXT]})],
    "the archive of the account": [site("POST /settings/security/export?q={word}", {}, FORM)],
    "the name of a key": [site("POST /platform/api/keys", {"name": WORD})],
}


async def prepare(fixture: RetentionFixture) -> None:
    """The account that sends has a password, which may be found nowhere."""
    fixture.password = fixture.canaries.make("the password of the account").word
    await set_password(fixture.store, fixture.email, fixture.password, COMMAND_LINE, clock.now_ms())


def private(given: Table, config: PrivateConfig, _upstream_url: str) -> Table:
    config.secret(SITE_KEY_VARIABLE, "the secret key of the site", 32 * "-")
    platform = given.get("platform", {})
    return {"platform": {name: platform[name] for name in KEPT if name in platform}}


AUDIT = PartAudit(
    cases=SITE,
    kept={"the name of a key": {"keys"}, "sign-in: User-Agent": {"sessions"}},
    private=private,
    prepare=prepare,
)
