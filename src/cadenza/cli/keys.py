"""cadenza key create | list | limit | revoke."""

from typing import TYPE_CHECKING

import click

from cadenza.cli.console import (
    config_option,
    format_time,
    json_option,
    load_config,
    now_ms,
    print_list,
    read_store,
    say,
    with_store,
)

if TYPE_CHECKING:
    from cadenza.control.keys import KeyLimits, KeyView

FIELDS = ("id", "name", "prefix", "scopes", "state", "created_at", "expires_at", "last_used_at")  # with --json
COLUMNS = ("prefix", "name", "state", "scopes", "rate", "burst", "created_at", "expires_at", "last_used_at", "id")

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
@config_option
def create(  # noqa: PLR0913, PLR0917 one for each option
    account: str,
    name: str,
    scope: tuple[str, ...],
    expires: str,
    rate: float | None,
    burst: int | None,
    config: str | None,
) -> None:
    """Create a key and print it, alone on standard output. It is shown only this once."""
    from cadenza.control.keys import KeyLimits, KeyOrder, create_key  # noqa: PLC0415 import time

    order = KeyOrder(name, scope, expires, KeyLimits(rate, burst))
    secret, key = with_store(load_config(config), lambda store: create_key(store, account, order, now_ms()))
    click.echo(secret)
    until = f"It expires at {format_time(key.expires_at)}." if key.expires_at else "It does not expire."
    say(f"This key is shown once; only its hash is stored. {until}")
    say(f"Scopes: {', '.join(key.scopes)}. To revoke it: cadenza key revoke {key.id}")


@keys.command("list")
@account_option
@json_option
@config_option
def list_(account: str, as_json: bool, config: str | None) -> None:
    """List the keys of an account, with their limits."""
    from cadenza.control.keys import list_keys  # noqa: PLC0415 import time

    views = read_store(load_config(config), lambda store: list_keys(store, account, now_ms()))
    rows = [_row(key) for key in views]
    if as_json:
        rows = [{name: row[name] for name in FIELDS} for row in rows]
    print_list(rows, COLUMNS, as_json=as_json)


@keys.command()
@key_argument
@rate_option
@burst_option
@config_option
def limit(key: str, rate: float | None, burst: int | None, config: str | None) -> None:
    """Set the limits of one key. Without --rate and --burst the limits in the config apply again."""
    from cadenza.control.keys import KeyLimits, limit_key  # noqa: PLC0415 import time

    limits = KeyLimits(rate, burst)
    view = with_store(load_config(config), lambda store: limit_key(store, key, limits, now_ms()))
    say(f"The key {view.prefix}… ({view.id}) {_describe(limits)}")


@keys.command()
@key_argument
@config_option
def revoke(key: str, config: str | None) -> None:
    """Revoke a key. It stops working at once. Name it by its id, its first 12 characters or itself."""
    from cadenza.control.keys import revoke_key  # noqa: PLC0415 import time

    revocation = with_store(load_config(config), lambda store: revoke_key(store, key, now_ms()))
    state = "was already revoked" if revocation.was_revoked else "is revoked"
    say(f"The key {revocation.key.prefix}… ({revocation.key.id}) {state}.")


def _row(key: "KeyView") -> dict[str, object]:
    rate, burst = key.limits.requests_per_second, key.limits.burst
    return {
        "id": key.id,
        "name": key.name,
        "prefix": key.prefix,
        "scopes": key.scopes,
        "state": key.state,
        "created_at": format_time(key.created_at),
        "expires_at": format_time(key.expires_at),
        "last_used_at": format_time(key.last_used_at),
        "rate": "default" if rate is None else f"{rate:g}/s",
        "burst": "default" if burst is None else burst,
    }


def _describe(limits: "KeyLimits") -> str:
    rate, burst = limits.requests_per_second, limits.burst
    if rate is None and burst is None:
        return "has the default limits again."
    per_second = "the default rate" if rate is None else f"{rate:g} requests per second"
    at_once = "the default burst" if burst is None else f"{burst} at once"
    return f"may make {per_second}, and {at_once}."
