"""Renders templates, and serves style sheets, scripts, pictures and fonts.

Templates escape everything; what one marks as safe was made by our own code. Static files are read once, and served
under a URL that changes with their content.
"""

import gzip
import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, time
from functools import partial
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

import msgspec
from jinja2 import BaseLoader, ChoiceLoader, Environment, PackageLoader, PrefixLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import HTMLResponse, RedirectResponse, Response

from cadenza.control.money.statement import describe_entry, explain_entry
from cadenza.core.formats import rfc3339
from cadenza.core.money import DECIMALS, NANO_PER_DOLLAR, TOKENS_PER_PRICE, format_dollars, parse_dollars
from cadenza.core.price_schedules import PriceSchedule, describe_price
from cadenza.parts import having
from cadenza.parts.site.charts import compact, count

MEDIA_TYPES = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
    "woff2": "font/woff2",
    "png": "image/png",
    "webmanifest": "application/manifest+json",
}
FOREVER = "public, max-age=31536000, immutable"
MINUS = "−"
NOTE_NAME = re.compile(r"[a-z]+(-[a-z]+)*")
DIGITS, DIGITS_OF_CENTS = 2, 4  # of an amount on a page; the second below a dollar
NOTES = {
    "signed-out": "You are signed out.",
    "account-deleted": "Your account is deleted.",
    "saved": "Saved.",
    "key-saved": "Saved. It takes effect with the next request.",
    "key-revoked": "The key is revoked. Requests with it get 401 from now on.",
    "token-revoked": "The access token is revoked. Requests with it get 401 from now on.",
    "account-suspended": "The account is suspended. Its keys and sessions are refused from now on.",
    "account-resumed": "The account is resumed.",
    "credit-added": "The credit is added.",
    "credit-taken-back": "The credit is taken back.",
    "refunded": "The request is refunded.",
    "class-rolled-back": "Rolled back. It takes effect with the next request.",
    "route-rests": "The route gets no further requests until its rest ends.",
    "route-resumed": "The route gets requests again.",
    "check-started": "The ledger check has begun. Its result appears below.",
    "check-runs": "A ledger check, or the close of a month, is running already.",
    "welcome": "Welcome. Your account is ready.",
    "mail-sent": "If this address can be used, an e-mail is on its way. Open the link in it to choose a password.",
    "reset-sent": "If there is an account for this address, an e-mail with a link is on its way.",
    "link-sent": "An e-mail with a link is on its way.",
    "password-set": "Your new password is set. Sign in with it.",
    "password-changed": "Your password is changed, and all other browsers are signed out.",
    "verified": "Your e-mail address is verified.",
    "address-changed": "Your e-mail address is changed.",
    "confirmed": "Confirmed. Nothing has been changed yet. For 15 minutes you can make changes here.",
    "too-late": "That took more than 15 minutes, so nothing was done. Try again.",
    "session-ended": "That browser is signed out.",
    "sessions-ended": "All other browsers are signed out.",
    "app-added": "Your authenticator app is added.",
    "app-removed": "The authenticator app is removed.",
    "passkey-removed": "The passkey is removed.",
}


class Tab(msgspec.Struct, frozen=True):
    """A link above a page. The first word of its path says in which bar it stands: /operator, /settings or /usage."""

    path: str
    label: str
    after: str = ""  # of a part: the path of the tab before it


class Asset(msgspec.Struct, frozen=True):
    """A file as it is sent. A font is compressed in itself."""

    kind: str
    content: bytes
    compressed: bytes | None


class Assets:
    """All files of static/, of the site and of parts with pages.

    Scripts import each other by relative addresses, so all share one version.
    """

    def __init__(self) -> None:
        folders = [one / "static" for one in (files("cadenza.parts.site"), *(part.folder for part in having("pages")))]
        found = [path for folder in folders if folder.is_dir() for path in folder.iterdir()]
        self._assets = {path.name: _read(path) for path in sorted(found, key=lambda path: path.name)}
        parts = [name.encode() + one.content for name, one in self._assets.items()]
        self._version = hashlib.sha256(b"".join(parts)).hexdigest()[:12]

    def url(self, name: str) -> str:
        assert name in self._assets, name
        return f"/static/{self._version}/{name}"

    def respond(self, version: str, name: str, accepted: str) -> Response | None:
        """None for an unknown file. Under the URL of another version, the current file is sent uncached."""
        asset = self._assets.get(name)
        if asset is None:
            return None
        headers = {"cache-control": FOREVER if version == self._version else "no-store", "vary": "accept-encoding"}
        if asset.compressed is None or "gzip" not in accepted:
            return Response(asset.content, headers=headers, media_type=asset.kind)
        return Response(asset.compressed, headers={**headers, "content-encoding": "gzip"}, media_type=asset.kind)


class Renderer:
    """Renders the templates of the site and of its parts."""

    def __init__(self, assets: Assets, tabs: Sequence[Tab] = ()) -> None:
        self._tabs = tabs
        added: dict[str, BaseLoader] = {
            part.name: PackageLoader(f"cadenza.parts.{part.name}") for part in having("pages")
        }
        self._environment = Environment(
            loader=ChoiceLoader([PackageLoader("cadenza.parts.site"), PrefixLoader(added)]),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters |= FILTERS
        self._environment.globals |= {
            "asset": assets.url,
            "dollars_column": dollars_column,
            "price_column": price_column,
            "tab_bar": self._tab_bar,
        }

    def page(self, template: str, values: dict[str, Any]) -> HTMLResponse:
        return HTMLResponse(self.part(template, values))

    def part(self, template: str, values: dict[str, Any]) -> str:
        """The text of a template, a whole page or a part of one."""
        return self._environment.get_template(template).render(values)

    def _tab_bar(self, here: str) -> Markup:
        bar = here.split("/")[1]
        tabs = [tab for tab in self._tabs if tab.path.split("/")[1] == bar]
        return Markup(self.part("tabs.html", {"name": bar.capitalize(), "tabs": tabs, "here": here}))  # noqa: S704


def redirect(path: str, note: str = "") -> RedirectResponse:
    """Redirect to a page after a form. The note is the name of a sentence, never text from a request."""
    assert not note or NOTE_NAME.fullmatch(note)
    assert path.startswith("/") and not path.startswith("//"), "only to our own pages"  # noqa: PT018
    return RedirectResponse(f"{path}?note={note}" if note else path, 303)


def dollars(amount_nano: int, digits: int | None = None) -> Markup:
    """Money on a page: $1,234.56, $0.0123, −$5.00. Its title is the exact amount, if that differs.

    Rounded towards zero to `digits`, or to two, and to four below a dollar. An amount that is not zero never looks
    like it: <$0.0001. page.js does the same in the browser.
    """
    size_nano = abs(amount_nano)
    digits = digits or (DIGITS_OF_CENTS if 0 < size_nano < NANO_PER_DOLLAR else DIGITS)
    step_nano = 10 ** (DECIMALS - digits)
    is_tiny = 0 < size_nano < step_nano
    whole, part = divmod(1 if is_tiny else size_nano // step_nano, 10**digits)
    sign = MINUS if amount_nano < 0 else ""
    shown = f"{sign}{'<' if is_tiny else ''}${whole:,}.{part:0{digits}}"
    if size_nano % step_nano == 0:
        return Markup.escape(shown)
    return Markup('<span title="{}">{}</span>').format(f"{sign}${format_dollars(size_nano)}", shown)


def dollars_column(amounts_nano: Iterable[int]) -> Callable[[int], Markup]:
    """How a column of a table shows its amounts, its total among them: exactly, with the digits that one of them needs.

    So the lines of a column add up to its total.
    """
    needed = [len(format_dollars(amount_nano).partition(".")[2]) for amount_nano in amounts_nano]
    return partial(dollars, digits=max(needed, default=DIGITS))


def price_column(schedules: Iterable[PriceSchedule], now_ms: int) -> Callable[[int], Markup]:
    """How a table shows prices of a token, by the million; all have as many digits as one of them needs."""
    prices = [msgspec.structs.astuple(schedule.at(now_ms)) for schedule in schedules]
    column = dollars_column((nano or 0) * TOKENS_PER_PRICE for price in prices for nano in price)
    return lambda price_nano: column(price_nano * TOKENS_PER_PRICE)


def moment(at_ms: int | None, empty: str = "never") -> Markup:
    """A time, which a script shows in the visitor's own time zone."""
    if at_ms is None:
        return Markup.escape(empty)
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return Markup('<time datetime="{}">{}</time>').format(rfc3339(at_ms), f"{day(at_ms)}, {at:%H:%M} UTC")


def day(at_ms: int) -> str:
    """The day of a time, in UTC."""
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return f"{at.day} {at:%b %Y}"


def utc_date(at_ms: int) -> str:
    """1 December 2026 (UTC); with the time of day, unless it is midnight."""
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    time_of_day = "" if at.time() == time() else f", {at:%H:%M}" if at.second == 0 else f", {at:%H:%M:%S}"
    return f"{at.day} {at:%B %Y}{time_of_day} (UTC)"


def _read(path: Traversable) -> Asset:
    kind, content = MEDIA_TYPES[path.name.rpartition(".")[2]], path.read_bytes()
    return Asset(kind, content, None if kind.startswith("font/") else gzip.compress(content, 9, mtime=0))


FILTERS = {
    "dollars": dollars,
    "nano": parse_dollars,  # of what an endpoint returns
    "exact_dollars": format_dollars,  # of prices in sentences, and in form fields
    "price": describe_price,
    "count": count,
    "compact": compact,
    "moment": moment,
    "day": day,
    "utc_date": utc_date,
    "entry_words": describe_entry,
    "entry_explained": explain_entry,
}
