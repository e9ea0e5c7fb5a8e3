"""cadenza key create | list | change | revoke."""

from collections.abc import Callable
from typing import TypeVar

import click
from msgspec import UNSET, UnsetType

from cadenza.config import Settings
from cadenza.control.keys import CapOrder, KeyChange, KeyOrder, change_key, create_key, list_keys, revoke_key
from cadenza.core.formats import rfc3339_or_none
from cadenza.core.money import format_dollars
from cadenza.core.records import COMMAND_LINE, PERIODS, Period
from cadenza.store.tables.keys import Key, KeyCap
from cadenza.terminal.configured import read_owner, settings_option, with_owner, with_store
from cadenza.terminal.console import json_option, now_ms, print_list, reference_option, say, to_row
from cadenza.terminal.lazy import CommandGroup

FIELDS = ("id", "name", "prefix", "scopes", "state", "created_at", "expires_at", "last_used_at")  # with --json
COLUMNS = (
    *("prefix", "name", "state", "scopes", "cap", "spent", "rate", "burst"),
    *("created_at", "expires_at", "last_used_at", "token", "id"),
)
NO_CAP, DEFAULT = "none", "default"

Number = TypeVar("Number", int, float)

key_argument = click.argument("key", metavar="PREFIX_OR_ID")
account_option = click.option("--account", metavar="EMAIL", required=True, help="The account that owns the key.")
cap_period_option = click.option(
    "--cap-period", type=click.Choice(PERIODS), default="total", show_default=True, help="In all, or in each month."
)


@click.group(cls=CommandGroup)
def keys() -> None:
    """API keys."""


@keys.command()
@account_option
@click.option("--name", metavar="TEXT", default="", help="What the key is for.")
@click.option(
    "--scope",
    metavar="SCOPE",
    multiple=True,
    show_default="all",
    help="inference, models or usage; repeat it for several.",
)
@click.option("--expires", metavar="DAYS", default="never", show_default=True, help="30, 90 or 365 days, or never.")
@click.option(
    "--rate",
    metavar="NUMBER",
    type=float,
    show_default="the rate in the config",
    help="Requests per second for this key.",
)
@click.option(
    "--burst", metavar="NUMBER", type=int, show_default="the burst in the config", help="Requests at once for this key."
)
@click.option("--cap", metavar="DOLLARS", help="The most that the key may spend, like 5.00.", show_default="no cap")
@cap_period_option
@reference_option
@settings_option
def create(  # noqa: PLR0913, PLR0917 one for each option
    account: str,
    name: str,
    scope: tuple[str, ...],
    expires: str,
    rate: float | None,
    burst: int | None,
    cap: str | None,
    cap_period: Period,
    reference: str,
    settings: Settings,
) -> None:
    """Create a key and print it, alone on standard output. It is shown only this once."""
    chosen = None if cap is None else CapOrder(cap, cap_period)
    order = KeyOrder(name, scope, expires, rate, burst, chosen, reference)
    secret, key = with_owner(settings, account, lambda store, owner: create_key(store, owner, order, now_ms()))
    click.echo(secret)
    until = f"It expires at {rfc3339_or_none(key.expires_at)}." if key.expires_at else "It does not expire."
    say(f"This key is shown once; only its hash is stored. {until}")
    if key.cap:
        say(f"It may spend {_say_cap(key.cap)}.")
    say(f"Scopes: {', '.join(key.scopes)}. To revoke it: cadenza key revoke {key.id}")


@keys.command("list")
@account_option
@json_option
@settings_option
def list_(account: str, as_json: bool, settings: Settings) -> None:
    """List the keys of an account, with their limits and spend caps."""
    views = read_owner(settings, account, lambda store, owner: list_keys(store, owner, now_ms()))
    print_list([to_row(key, *FIELDS) if as_json else _row(key) for key in views], COLUMNS, as_json=as_json)


@keys.command()
@key_argument
@click.option("--name", metavar="TEXT", help="Another name.")
@click.option("--rate", metavar="NUMBER", help="Requests per second; or default, as in the config.")
@click.option("--burst", metavar="NUMBER", help="Requests at once; or default, as in the config.")
@click.option("--cap", metavar="DOLLARS", help="The most that the key may spend, like 5.00; or none.")
@cap_period_option
@settings_option
def change(  # noqa: PLR0913, PLR0917 one for each option
    key: str,
    name: str | None,
    rate: str | None,
    burst: str | None,
    cap: str | None,
    cap_period: Period,
    settings: Settings,
) -> None:
    """Change the name, the limits or the spend cap of a key. What is not given stays.

    What the key has spent in the period counts towards its cap. A month is a calendar month in UTC.
    """
    order = KeyChange(
        name=UNSET if name is None else name,
        requests_per_second=_limit("--rate", rate, float),
        burst=_limit("--burst", burst, int),
        cap=UNSET if cap is None else None if cap == NO_CAP else CapOrder(cap, cap_period),
    )
    changed = with_store(settings, lambda store: change_key(store, COMMAND_LINE, key, order, now_ms()))
    spends = "anything" if changed.cap is None else _say_cap(changed.cap)
    spent = f"; {format_dollars(changed.cap.spent_nano)} are spent" if changed.cap else ""
    say(f"The key {changed.prefix}… ({changed.id}) is named {changed.name!r}. {_say_limits(changed)}")
    say(f"It may spend {spends}{spent}.")


@keys.command()
@key_argument
@settings_option
def revoke(key: str, settings: Settings) -> None:
    """Revoke a key. It stops working at once. Name it by its id, its first 12 characters or itself."""
    revocation = with_store(settings, lambda store: revoke_key(store, COMMAND_LINE, key, now_ms()))
    state = "was already revoked" if revocation.was_revoked else "is revoked"
    say(f"The key {revocation.key.prefix}… ({revocation.key.id}) {state}.")


def _row(key: Key) -> dict[str, object]:
    rate, burst = key.requests_per_second, key.burst
    return {
        **to_row(key, *FIELDS),
        "token": key.created_by_token,
        "rate": "default" if rate is None else f"{rate:g}/s",
        "burst": "default" if burst is None else burst,
        "cap": None if key.cap is None else _short_cap(key.cap),
        "spent": None if key.cap is None else format_dollars(key.cap.spent_nano),
    }


def _short_cap(cap: KeyCap) -> str:
    return format_dollars(cap.limit_nano) + ("/month" if cap.period == "month" else "")


def _say_cap(cap: KeyCap) -> str:
    return f"{format_dollars(cap.limit_nano)} dollars {'a month' if cap.period == 'month' else 'in total'}"


def _say_limits(key: Key) -> str:
    rate, burst = key.requests_per_second, key.burst
    per_second = "the default rate" if rate is None else f"{rate:g} requests per second"
    at_once = "the default burst" if burst is None else f"{burst} at once"
    return f"It may make {per_second}, and {at_once}."


def _limit(option: str, text: str | None, number: Callable[[str], Number]) -> Number | UnsetType | None:
    """What an option sets: None for the default of the config."""
    if text is None:
        return UNSET
    try:
        return None if text == DEFAULT else number(text)
    except ValueError:
        raise ValueError(f"{option} is a number, or {DEFAULT}") from None
