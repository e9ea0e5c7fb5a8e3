"""Preferences: the class that `auto` means, the theme, search and memory."""

import msgspec
from starlette.responses import Response

from cadenza.control.account.accounts import choose, preferences_of
from cadenza.core.errors import ControlError
from cadenza.core.formats import rfc3339, rfc3339_or_none
from cadenza.core.records import CLASSES
from cadenza.store.tables.accounts import Preferences, Theme
from cadenza.web.chat.grounding import offer_of
from cadenza.web.render import redirect
from cadenza.web.routes import Endpoint, Routes, get, post
from cadenza.web.session_cookies import status_of
from cadenza.web.visit import Visit


class PreferencesForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the owner chooses. A switch that is off is not sent."""

    preferred_class: str
    theme: Theme
    uses_search: bool = False
    uses_memory: bool = False


class PreferencesRecord(msgspec.Struct, frozen=True, rename={"preferred_class": "class"}):
    """What the owner chose."""

    preferred_class: str
    theme: Theme
    web_search: bool
    memory: bool


class PreferencesChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"preferred_class": "class"}):
    """What to change. What is left out stays."""

    preferred_class: str | msgspec.UnsetType = msgspec.UNSET
    theme: Theme | msgspec.UnsetType = msgspec.UNSET
    web_search: bool | msgspec.UnsetType = msgspec.UNSET
    memory: bool | msgspec.UnsetType = msgspec.UNSET


class AccountRecord(msgspec.Struct, frozen=True):
    """The account that is signed in."""

    id: str
    email: str
    is_operator: bool
    created_at: str
    verified_at: str | None
    preferences: PreferencesRecord


async def settings_page(visit: Visit) -> Response:
    return _show(visit, _written(preferences_of(visit.account)))


async def send_preferences(visit: Visit) -> Response:
    form = await visit.form(PreferencesForm)
    typed = PreferencesRecord(form.preferred_class, form.theme, form.uses_search, form.uses_memory)
    try:
        await _choose(visit, typed)
    except ControlError as error:
        return _show(visit, typed, status_of(error), error.message)
    return redirect("/settings", "saved")


async def api_account(visit: Visit) -> AccountRecord:
    account = visit.account
    return AccountRecord(
        id=account.id,
        email=account.email,
        is_operator=account.is_operator,
        created_at=rfc3339(account.created_at),
        verified_at=rfc3339_or_none(account.verified_at),
        preferences=_written(preferences_of(account)),
    )


async def api_change(visit: Visit, change: PreferencesChange) -> PreferencesRecord:
    given = {name: value for name, value in msgspec.structs.asdict(change).items() if value is not msgspec.UNSET}
    return await _choose(visit, msgspec.structs.replace(_written(preferences_of(visit.account)), **given))


async def _choose(visit: Visit, wanted: PreferencesRecord) -> PreferencesRecord:
    chosen = Preferences(wanted.preferred_class, wanted.theme, wanted.web_search, wanted.memory)
    return _written(await choose(visit.context.store, visit.account, chosen, _usable(visit), visit.now_ms))


def _written(chosen: Preferences) -> PreferencesRecord:
    return PreferencesRecord(chosen.preferred_class, chosen.theme, chosen.uses_search, chosen.uses_memory)


def _usable(visit: Visit) -> list[str]:
    served = visit.context.gateway.snapshot.catalogue.ids
    return [class_id for class_id in CLASSES if class_id in served]


def _show(visit: Visit, chosen: PreferencesRecord, status: int = 200, error: str = "") -> Response:
    return visit.page(
        "settings.html",
        status,
        chosen=chosen,
        classes=_usable(visit),
        offer=offer_of(visit.context.gateway),
        error=error,
    )


ROUTES: Routes = (
    get("/settings", settings_page),
    post("/settings", send_preferences),
    Endpoint(
        "GET", "/account", "The account that is signed in, and its preferences.", api_account, returns=AccountRecord
    ),
    Endpoint("PATCH", "/preferences", "Change preferences.", api_change, PreferencesChange, PreferencesRecord),
)
