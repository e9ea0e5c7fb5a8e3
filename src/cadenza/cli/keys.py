"""cadenza key create | list | rename | limit | cap | revoke."""

import click

from cadenza.cli.configured import load_config, read_store, with_store
from cadenza.cli.console import config_option, json_option, now_ms, print_list, reference_option, say, to_row
from cadenza.control.keys import CapOrder, KeyChange, KeyOrder, change_key, create_key, list_keys, revoke_key
from cadenza.core.formats import rfc3339_or_none
from cadenza.core.money import format_dollars
from cadenza.core.records import PERIODS, Period
from cadenza.store.tables.keys import Key, KeyCap

FIELDS = ("id", "name", "prefix", "scopes", "state", "created_at", "expires_at", "last_used_at")  # with --json
COLUMNS = (
    *("prefix", "name", "state", "scopes", "cap", "spent", "rate", "burst"),
    *("created_at", "expires_at", "last_used_at", "token", "id"),
)
NO_CAP = "none"

key_argument = click.argument("key", metavar="PREFIX_OR_ID")
account_option = click.option("--account", metavar="EMAIL", required=True, help="The account that owns the key.")
rate_option = click.option(
    "--rate",
    metavar="NUMBER",
    type=float,
    show_default="the rate in the config",
    help="Requests per second for this key.",
)
burst_option = click.option(
    "--burst", metavar="NUMBER", type=int, show_default="the burst in the config", help="Requests at once for this key."
)
period_choice = click.Choice(PERIODS)


@click.group()
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
@rate_option
@burst_option
@click.option("--cap", metavar="DOLLARS", help="The most that the key may spend, like 5.00.", show_default="no cap")
@click.option("--cap-period", type=period_choice, default="total", show_default=True, help="In all, or in each month.")
@reference_option
@config_option
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
    config: str | None,
) -> None:
    """Create a key and print it, alone on standard output. It is shown only this once."""
    chosen = None if cap is None else CapOrder(cap, cap_period)
    order = KeyOrder(name, scope, expires, rate, burst, chosen, reference)
    secret, key = with_store(load_config(config), lambda store: create_key(store, account, order, now_ms()))
    click.echo(secret)
    until = f"It expires at {rfc3339_or_none(key.expires_at)}." if key.expires_at else "It does not expire."
    say(f"This key is shown once; only its hash is stored. {until}")
    if key.cap:
        say(f"It may spend {_say_cap(key.cap)}.")
    say(f"Scopes: {', '.join(key.scopes)}. To revoke it: cadenza key revoke {key.id}")


@keys.command("list")
@account_option
@json_option
@config_option
def list_(account: str, as_json: bool, config: str | None) -> None:
    """List the keys of an account, with their limits and spend caps."""
    views = read_store(load_config(config), lambda store: list_keys(store, account, now_ms()))
    print_list([to_row(key, *FIELDS) if as_json else _row(key) for key in views], COLUMNS, as_json=as_json)


@keys.command()
@key_argument
@click.argument("name")
@config_option
def rename(key: str, name: str, config: str | None) -> None:
    """Give a key another name."""
    view = with_store(load_config(config), lambda store: change_key(store, key, KeyChange(name=name), now_ms()))
    say(f"The key {view.prefix}… ({view.id}) is named {view.name!r}.")


@keys.command()
@key_argument
@click.argument("dollars")
@click.option("--period", type=period_choice, default="total", show_default=True, help="In all, or in each month.")
@config_option
def cap(key: str, dollars: str, period: Period, config: str | None) -> None:
    """Set the spend cap of one key: an amount of dollars, like 5.00, or none to remove it.

    What the key has spent in the period counts. A month is a calendar month in UTC.
    """
    chosen = None if dollars == NO_CAP else CapOrder(dollars, period)
    view = with_store(load_config(config), lambda store: change_key(store, key, KeyChange(cap=chosen), now_ms()))
    name = f"The key {view.prefix}… ({view.id})"
    if view.cap is None:
        say(f"{name} has no spend cap.")
    else:
        say(f"{name} may spend {_say_cap(view.cap)}; {format_dollars(view.cap.spent_nano)} are spent.")


@keys.command()
@key_argument
@rate_option
@burst_option
@config_option
def limit(key: str, rate: float | None, burst: int | None, config: str | None) -> None:
    """Set the limits of one key. Without --rate and --burst the limits in the config apply again."""
    change = KeyChange(requests_per_second=rate, burst=burst)
    view = with_store(load_config(config), lambda store: change_key(store, key, change, now_ms()))
    say(f"The key {view.prefix}… ({view.id}) {_describe(rate, burst)}")


@keys.command()
@key_argument
@config_option
def revoke(key: str, config: str | None) -> None:
    """Revoke a key. It stops working at once. Name it by its id, its first 12 characters or itself."""
    revocation = with_store(load_config(config), lambda store: revoke_key(store, key, now_ms()))
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


def _describe(rate: float | None, burst: int | None) -> str:
    if rate is None and burst is None:
        return "has the default limits again."
    per_second = "the default rate" if rate is None else f"{rate:g} requests per second"
    at_once = "the default burst" if burst is None else f"{burst} at once"
    return f"may make {per_second}, and {at_once}."
