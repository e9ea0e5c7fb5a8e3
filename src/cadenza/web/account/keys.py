"""The pages of keys: the list, a new key, and one key with its limits and its end.

The secret of a new key is in the reply to the form that created it and nowhere else: no address, cookie, log or table
has it, and no cache keeps the reply.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
from msgspec import UNSET
from starlette.responses import Response

from cadenza.control.email.messages import KEY_CREATED
from cadenza.control.keys import (
    ACTIVE_KEYS_MAX,
    EXPIRY_DAYS,
    NAME_CHARS_MAX,
    KeyChange,
    KeyLimits,
    KeyOrder,
    KeyView,
    UnknownKey,
    change_key,
    create_own_key,
    get_own_key,
    page_own_keys,
    revoke_key,
)
from cadenza.control.money.idempotency import Unconfirmed
from cadenza.core.errors import ControlError
from cadenza.core.money import format_dollars, parse_dollars
from cadenza.core.rates import Rate
from cadenza.core.records import PERIODS, SCOPES, Cap
from cadenza.web.account.proof import with_proof
from cadenza.web.errors import Missing, NotConfirmed, TooMany
from cadenza.web.render import redirect
from cadenza.web.routes import Routes, get, post
from cadenza.web.visit import Visit

CHANGE_RATE = Rate(1.0, 60)  # changes of the keys of one account
EXPIRIES = {"30": "After 30 days", "90": "After 90 days", "365": "After 365 days", "never": "Never"}
SCOPE_GRANTS = {
    "inference": "Chat completions, which cost credit",
    "models": "Listing the models",
    "usage": "Reading usage and the balance",
}
assert EXPIRIES.keys() == EXPIRY_DAYS.keys()
assert SCOPE_GRANTS.keys() == set(SCOPES)


class LimitFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fields of a key that can be changed later, as typed. An empty rate or cap means none of its own."""

    name: str = ""
    rate: str = ""
    burst: str = ""
    cap: str = ""
    cap_period: str = "total"

    def limits(self) -> KeyLimits:
        try:
            rate = float(self.rate) if self.rate.strip() else None
            return KeyLimits(rate, int(self.burst) if self.burst.strip() else None)
        except ValueError:
            raise ControlError("The rate is a number like 2.5, and the burst a whole number like 10.") from None

    def chosen_cap(self) -> Cap | None:
        if not self.cap.strip():
            return None
        for period in PERIODS:
            if period == self.cap_period:
                return Cap(_dollars(self.cap), period)
        raise ControlError("A spend cap is in total or per month.")


class NewKeyForm(LimitFields, frozen=True, forbid_unknown_fields=True):
    """The form of a new key, as typed."""

    scopes: list[str] = []
    expires: str = "never"

    def order(self) -> KeyOrder:
        return KeyOrder(self.name.strip(), self.scopes, self.expires, self.limits(), self.chosen_cap())


class Empty(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A form with a button only."""


async def list_page(visit: Visit) -> Response:
    query = visit.request.query_params
    shows_all, before = query.get("show") == "all", query.get("before", "")
    page = await page_own_keys(visit.context.store, visit.account.id, visit.now_ms, before, is_active=not shows_all)
    return visit.page("keys.html", page=page, shows_all=shows_all, before=before, keys_max=ACTIVE_KEYS_MAX)


async def new_page(visit: Visit) -> Response:
    return _new_page(visit, NewKeyForm())


async def create(visit: Visit) -> Response:
    form = await visit.form(NewKeyForm)
    await take_turn(visit)
    account = visit.account
    try:
        secret, key = await create_own_key(
            visit.context.store, account.id, form.order(), visit.now_ms, by=account.email
        )
    except Unconfirmed:
        raise NotConfirmed from None
    except ControlError as error:
        return _new_page(visit, form, error.message)
    visit.context.send_notice(account.email, KEY_CREATED, name_of(key))
    return visit.page("key_created.html", secret=secret, key=key, base=f"{visit.base_url}/v1")


async def key_page(visit: Visit) -> Response:
    key = await _own_key(visit)
    return _key_page(visit, key, fields_of(key))


async def change(visit: Visit) -> Response:
    form = await visit.form(LimitFields)
    await take_turn(visit)
    key = await _own_key(visit)
    try:
        made = change_of(key, form)
        if made != KeyChange():
            with own_keys():
                await change_key(
                    visit.context.store, key.id, made, visit.now_ms, visit.account.id, by=visit.account.email
                )
    except ControlError as error:
        return _key_page(visit, key, form, error.message)
    return redirect(f"/keys/{key.id}", "key-saved")


async def revoke(visit: Visit) -> Response:
    await visit.form(Empty)
    await take_turn(visit)
    with own_keys():
        await revoke_key(
            visit.context.store,
            visit.request.path_params["key_id"],
            visit.now_ms,
            visit.account.id,
            by=visit.account.email,
        )
    return redirect("/keys", "key-revoked")


def name_of(key: KeyView) -> str:
    """How a key is called in a notice: its first characters, and its name if it has one."""
    return f'{key.prefix}… ("{key.name}")' if key.name else f"{key.prefix}…"


def change_of(key: KeyView, form: LimitFields) -> KeyChange:
    """Only what the form changes, so that the audit log has nothing else."""
    name, limits, cap = form.name.strip(), form.limits(), form.chosen_cap()
    return KeyChange(
        UNSET if name == key.name else name,
        UNSET if limits == key.limits else limits,
        UNSET if cap == key.cap else cap,
    )


def fields_of(key: KeyView) -> LimitFields:
    rate, burst = key.limits.requests_per_second, key.limits.burst
    return LimitFields(
        key.name,
        "" if rate is None else f"{rate:g}",
        "" if burst is None else str(burst),
        format_dollars(key.cap.limit_nano) if key.cap else "",
        key.cap.period if key.cap else "total",
    )


@contextmanager
def own_keys() -> Iterator[None]:
    """404 for keys that do not exist and for those of other accounts alike."""
    try:
        yield
    except UnknownKey:
        raise Missing("There is no such key.") from None


async def take_turn(visit: Visit) -> None:
    """429 for an account that changes its keys too often."""
    ticket = await visit.context.rates.take(f"keys:{visit.account.id}", CHANGE_RATE)
    if not ticket.is_granted:
        raise TooMany("Too many changes of keys at once. Try again in a moment.", ticket.wait_s)


async def _own_key(visit: Visit) -> KeyView:
    with own_keys():
        return await get_own_key(
            visit.context.store, visit.account.id, visit.request.path_params["key_id"], visit.now_ms
        )


def _new_page(visit: Visit, form: NewKeyForm, error: str = "") -> Response:
    return visit.page(
        "key_new.html",
        400 if error else 200,
        form=form,
        error=error,
        scopes=SCOPE_GRANTS,
        expiries=EXPIRIES,
        **_bounds(visit),
    )


def _key_page(visit: Visit, key: KeyView, form: LimitFields, error: str = "") -> Response:
    return visit.page("key.html", 400 if error else 200, key=key, form=form, error=error, **_bounds(visit))


def _bounds(visit: Visit) -> dict[str, object]:
    return {"usual": visit.context.gateway.snapshot.limits.rate, "name_chars_max": NAME_CHARS_MAX}


def _dollars(text: str) -> int:
    try:
        return parse_dollars(text.strip())
    except ValueError as error:
        raise ControlError(f"Spend cap: {error}.") from None


ROUTES: Routes = (
    get("/keys", list_page),
    get("/keys/new", with_proof(new_page)),
    post("/keys", with_proof(create, "/keys/new")),
    get("/keys/{key_id}", key_page),
    post("/keys/{key_id}", change),
    post("/keys/{key_id}/revoke", revoke),
)
