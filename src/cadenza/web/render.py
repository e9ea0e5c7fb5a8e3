"""Templates to pages. Everything is escaped; what a template marks as safe was made by our own code."""

from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import HTMLResponse, RedirectResponse

from cadenza.core.money import format_dollars
from cadenza.web.assets import Assets

NANO_PER_CENT = 10_000_000
NOTES = {
    "signed-out": "You are signed out.",
    "saved": "Saved.",
    "welcome": "Welcome. Your account is ready.",
    "mail-sent": "If this address can be used, an e-mail is on its way. Open the link in it to choose a password.",
    "reset-sent": "If there is an account for this address, an e-mail with a link is on its way.",
    "link-sent": "An e-mail with a link is on its way.",
    "password-set": "Your new password is set. Sign in with it.",
    "password-changed": "Your password is changed, and all other browsers are signed out.",
    "verified": "Your e-mail address is verified.",
    "address-changed": "Your e-mail address is changed.",
    "confirmed": "Confirmed. For 15 minutes you can make changes here.",
    "session-ended": "That browser is signed out.",
    "sessions-ended": "All other browsers are signed out.",
    "app-added": "Your authenticator app is added.",
    "app-removed": "The authenticator app is removed.",
    "passkey-removed": "The passkey is removed.",
}


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
        self._environment.filters |= {"dollars": dollars, "exact_dollars": format_dollars, "moment": moment}
        self._environment.globals |= {"asset": assets.url}

    def page(self, template: str, status: int, values: dict[str, Any]) -> HTMLResponse:
        return HTMLResponse(self._environment.get_template(template).render(values), status)


def redirect(path: str, note: str = "") -> RedirectResponse:
    """After a form: see this page. The note is one of NOTES, never text from a request."""
    assert not note or note in NOTES
    assert path.startswith("/") and not path.startswith("//"), "only to our own pages"  # noqa: PT018
    return RedirectResponse(f"{path}?note={note}" if note else path, 303)


def dollars(amount_nano: int) -> str:
    """For people: cents, and more decimals only where cents would show nothing."""
    if amount_nano % NANO_PER_CENT == 0 or abs(amount_nano) >= 10**9:
        return f"{amount_nano / 10**9:,.2f}"
    return (
        f"{amount_nano / 10**9:.6f}".rstrip("0").ljust(4, "0")
        if abs(amount_nano) >= 1000
        else format_dollars(amount_nano)
    )


def moment(at_ms: int | None, empty: str = "never") -> Markup:
    """A time, which a script shows in the visitor's own time zone."""
    if at_ms is None:
        return Markup.escape(empty)
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return Markup('<time datetime="{}">{}</time>').format(
        at.strftime("%Y-%m-%dT%H:%M:%SZ"), at.strftime("%d %b %Y, %H:%M UTC")
    )


def read_text(name: str) -> str:
    return files("cadenza.web").joinpath(name).read_text(encoding="utf-8")
