"""Preferences: the class that `auto` stands for, the theme, search and memory, and whether replies say their cost."""

import msgspec
from msgspec import UNSET, UnsetType
from starlette.responses import Response

from cadenza.core.public import to_record
from cadenza.core.records import CLASSES
from cadenza.parts.site.accounts import choose, preferences_of
from cadenza.parts.site.chat.offer import offer_of
from cadenza.parts.site.routes import Routes, endpoint, form, get
from cadenza.parts.site.visit import Visit
from cadenza.store.tables.accounts import Preferences, Theme

RENAMED = {"preferred_class": "class", "uses_search": "web_search", "uses_memory": "memory", "shows_cost": "usage_cost"}


class PreferencesForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the owner chooses. A switch that is off is not sent."""

    preferred_class: str
    theme: Theme
    uses_search: bool = False
    uses_memory: bool = False
    shows_cost: bool = False


class PreferencesRecord(msgspec.Struct, frozen=True, rename=RENAMED):
    """What the owner chose."""

    preferred_class: str
    theme: Theme
    uses_search: bool
    uses_memory: bool
    shows_cost: bool


class PreferencesChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename=RENAMED):
    """What to change. What is left out stays."""

    preferred_class: str | UnsetType = UNSET
    theme: Theme | UnsetType = UNSET
    uses_search: bool | UnsetType = UNSET
    uses_memory: bool | UnsetType = UNSET
    shows_cost: bool | UnsetType = UNSET


class AccountRecord(msgspec.Struct, frozen=True):
    """The account that is signed in."""

    id: str
    email: str
    is_operator: bool
    created_at: str
    verified_at: str | None
    preferences: PreferencesRecord


async def settings_page(visit: Visit) -> Response:
    chosen, offer = visit.typed or preferences_of(visit.account), offer_of(visit.service.gateway)
    return visit.page("settings.html", chosen=chosen, classes=_usable_classes(visit), offer=offer)


async def save(visit: Visit, typed: PreferencesForm) -> None:
    await _choose(visit, msgspec.structs.asdict(typed))


async def get_account(visit: Visit) -> AccountRecord:
    preferences = to_record(PreferencesRecord, preferences_of(visit.account))
    return to_record(AccountRecord, visit.account, preferences=preferences)


async def change_preferences(visit: Visit, change: PreferencesChange) -> PreferencesRecord:
    given = {name: value for name, value in msgspec.structs.asdict(change).items() if value is not UNSET}
    return to_record(PreferencesRecord, await _choose(visit, given))


async def _choose(visit: Visit, given: dict[str, object]) -> Preferences:
    chosen = msgspec.structs.replace(preferences_of(visit.account), **given)
    return await choose(visit.store, visit.owner, visit.account, chosen, _usable_classes(visit), visit.now_ms)


def _usable_classes(visit: Visit) -> list[str]:
    served = visit.service.gateway.snapshot.catalogue.ids
    return [class_id for class_id in CLASSES if class_id in served]


ROUTES: Routes = (
    get("/settings", settings_page),
    form("/settings", save, "/settings", "saved", on_error=settings_page),
    endpoint("GET", "/account", "The account that is signed in, and its preferences.", get_account, "account:read"),
    endpoint("PATCH", "/preferences", "Change preferences.", change_preferences, "account:write"),
)
