"""Renders templates, and serves style sheets, scripts and pictures.

Templates escape everything; what one marks as safe was made by our own code. Static files are read once, and served
under a URL that changes with their content.
"""

import gzip
import hashlib
from datetime import UTC, datetime, time
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import HTMLResponse, RedirectResponse, Response

from cadenza.control.money.payments import describe_payment
from cadenza.control.money.statement import describe_entry, explain_entry
from cadenza.core.formats import rfc3339
from cadenza.core.money import NANO_PER_DOLLAR, TOKENS_PER_PRICE, format_dollars
from cadenza.core.prices import describe_price
from cadenza.web.charts import about_dollars, compact, count

MEDIA_TYPES = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
    "webmanifest": "application/manifest+json",
}
FOREVER = "public, max-age=31536000, immutable"
LARGE_STEP_NANO = 100_000
SMALL_STEP_NANO = 1_000  # a micro-dollar
NOTES = {
    "signed-out": "You are signed out.",
    "account-deleted": "Your account is deleted.",
    "saved": "Saved.",
    "key-saved": "Saved. It takes effect with the next request.",
    "key-revoked": "The key is revoked. Requests with it get 401 from now on.",
    "token-revoked": "The access token is revoked. Requests with it get 401 from now on.",
    "note-added": "The note is added.",
    "note-changed": "The note is changed.",
    "note-removed": "The note is deleted.",
    "redeemed": "The credit of the voucher is on your account.",
    "paid": "Thank you. The credit arrives when the payment is confirmed, usually within a minute.",
    "not-paid": "The payment was not made, and nothing was charged.",
    "account-suspended": "The account is suspended. Its keys and sessions are refused from now on.",
    "account-resumed": "The account is resumed.",
    "credit-added": "The credit is added.",
    "credit-taken-back": "The credit is taken back.",
    "refunded": "The request is refunded.",
    "class-rolled-back": "Rolled back. It takes effect with the next request.",
    "route-rests": "The route rests. It gets no further requests until then.",
    "route-resumed": "The route gets requests again.",
    "voucher-revoked": "The voucher has expired. Its code gives no credit any more.",
    "close-started": "The close of the month has begun. Its result appears here.",
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
    "session-ended": "That browser is signed out.",
    "sessions-ended": "All other browsers are signed out.",
    "app-added": "Your authenticator app is added.",
    "app-removed": "The authenticator app is removed.",
    "passkey-removed": "The passkey is removed.",
}


class Asset(msgspec.Struct, frozen=True):
    """A file as it is sent."""

    kind: str
    content: bytes
    compressed: bytes


class Assets:
    """All files of static/. Scripts import each other by relative addresses, so all share one version."""

    def __init__(self) -> None:
        self._assets = {
            path.name: _read(path)
            for path in sorted(files("cadenza.web").joinpath("static").iterdir(), key=lambda path: path.name)
        }
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
        if "gzip" not in accepted:
            return Response(asset.content, headers=headers, media_type=asset.kind)
        return Response(asset.compressed, headers={**headers, "content-encoding": "gzip"}, media_type=asset.kind)


class Renderer:
    """Renders the templates of the site."""

    def __init__(self, assets: Assets) -> None:
        self._environment = Environment(
            loader=PackageLoader("cadenza.web"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters |= FILTERS
        self._environment.globals |= {"asset": assets.url}

    def page(self, template: str, values: dict[str, Any]) -> HTMLResponse:
        return HTMLResponse(self.part(template, values))

    def part(self, template: str, values: dict[str, Any]) -> str:
        """The text of a template, a whole page or a part of one."""
        return self._environment.get_template(template).render(values)


def redirect(path: str, note: str = "") -> RedirectResponse:
    """Redirect to a page after a form. The note is one of NOTES, never text from a request."""
    assert not note or note in NOTES
    assert path.startswith("/") and not path.startswith("//"), "only to our own pages"  # noqa: PT018
    return RedirectResponse(f"{path}?note={note}" if note else path, 303)


def dollars(amount_nano: int) -> str:
    """Rounded down, for people: at least two decimals, and at most four from a dollar on."""
    step_nano = LARGE_STEP_NANO if abs(amount_nano) >= NANO_PER_DOLLAR else SMALL_STEP_NANO
    whole, _, decimals = format_dollars(amount_nano // step_nano * step_nano).partition(".")
    return f"{int(whole):,}.{decimals}" if whole.lstrip("-") != "0" else f"{whole}.{decimals}"


def signed_dollars(amount_nano: int) -> str:
    """Exact, with a sign: +5.00, −0.00012."""
    sign = "+" if amount_nano > 0 else "−" if amount_nano else ""
    return sign + format_dollars(abs(amount_nano))


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
    content = path.read_bytes()
    return Asset(MEDIA_TYPES[path.name.rpartition(".")[2]], content, gzip.compress(content, 9, mtime=0))


FILTERS = {
    "per_million": lambda price_nano: price_nano * TOKENS_PER_PRICE,  # from the price of a token
    "dollars": dollars,
    "exact_dollars": format_dollars,
    "price": describe_price,
    "signed_dollars": signed_dollars,
    "about_dollars": about_dollars,
    "count": count,
    "compact": compact,
    "moment": moment,
    "day": day,
    "utc_date": utc_date,
    "entry_words": describe_entry,
    "entry_explained": explain_entry,
    "payment_words": describe_payment,
}
