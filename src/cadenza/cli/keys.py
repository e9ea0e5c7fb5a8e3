"""cadenza key create | list | change | revoke."""

import click
from msgspec.structs import asdict

from cadenza.config import Settings
from cadenza.control.keys import KeyChange, KeyOrder, change_key, create_key, list_keys, revoke_key, say_limits
from cadenza.core.formats import rfc3339_or_none
from cadenza.core.money import format_dollars
from cadenza.core.orders import copied
from cadenza.core.public import public_values
from cadenza.core.records import COMMAND_LINE, KeyLimits
from cadenza.store.tables.keys import Key, KeyCap
from cadenza.terminal.configured import read_owner, settings_option, with_owner, with_store
from cadenza.terminal.console import json_option, now_ms, print_list, say, to_row
from cadenza.terminal.lazy import CommandGroup
from cadenza.terminal.orders import order_options

FIELDS = ("id", "name", "prefix", "scopes", "state", "created_at", "expires_at", "last_used_at")  # the first of JSON
COLUMNS = (
    *("prefix", "name", "state", "scopes", "cap", "spent", *KeyLimits.__struct_fields__),
    *("created_at", "expires_at", "last_used_at", "created_by_token", "id"),
)

key_argument = click.argument("key", metavar="PREFIX_OR_ID")
account_option = click.option("--account", metavar="EMAIL", required=True, help="The account that owns the key.")


@click.group(cls=CommandGroup)
def keys() -> None:
    """API keys."""


@keys.command()
@account_option
@order_options(KeyOrder)
@settings_option
def create(account: str, order: KeyOrder, settings: Settings) -> None:
    """Create a key and print it, alone on standard output. It is shown only this once."""
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
    rows = [to_row(key, *FIELDS) | (public_values(Key, key) if as_json else _row(key)) for key in views]
    print_list(rows, COLUMNS, as_json=as_json)


@keys.command()
@key_argument
@order_options(KeyChange, is_change=True)
@settings_option
def change(key: str, order: KeyChange, settings: Settings) -> None:
    """Change the name, the limits or the spend cap of a key. What is not given stays.

    What the key has spent in the period counts towards its cap. A month is a calendar month in UTC.
    """
    changed = with_store(settings, lambda store: change_key(store, COMMAND_LINE, key, order, now_ms()))
    spends = "anything" if changed.cap is None else _say_cap(changed.cap)
    spent = f"; {format_dollars(changed.cap.spent_nano)} are spent" if changed.cap else ""
    say(f"The key {changed.prefix}… ({changed.id}) is named {changed.name!r}.")
    say(f"Its limits: {say_limits(copied(KeyLimits, changed), 'default')}.")
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
    limits = {name: "default" if one is None else one for name, one in asdict(copied(KeyLimits, key)).items()}
    cap = {"cap": key.cap and _short_cap(key.cap), "spent": key.cap and format_dollars(key.cap.spent_nano)}
    return {**limits, **cap, "created_by_token": key.created_by_token}


def _short_cap(cap: KeyCap) -> str:
    return format_dollars(cap.limit_nano) + ("/month" if cap.period == "month" else "")


def _say_cap(cap: KeyCap) -> str:
    return f"{format_dollars(cap.limit_nano)} dollars {'a month' if cap.period == 'month' else 'in total'}"
