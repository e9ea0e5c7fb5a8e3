"""cadenza key create | list | revoke."""

from typing import Annotated

import msgspec
import typer

from cadenza.cli.console import AsJson, Config, now_ms, print_list, say, when, with_store
from cadenza.control import keys as control

keys = typer.Typer(help="API keys.", no_args_is_help=True)
COLUMNS = ("prefix", "name", "state", "scopes", "created_at", "expires_at", "last_used_at", "id")

Key = Annotated[str, typer.Argument(metavar="PREFIX_OR_ID", help="The key's id, or its first 12 characters.")]
Rate = Annotated[float | None, typer.Option(help="Requests a second, for this key. [default: as in the config]")]
Burst = Annotated[int | None, typer.Option(help="Requests at once, for this key. [default: as in the config]")]
Account = Annotated[str, typer.Option("--account", help="The email address of the account that owns the key.")]


@keys.command()
def create(  # noqa: PLR0913, PLR0917 typer makes an option of each
    account: Account,
    name: Annotated[str, typer.Option(help="What the key is for.")] = "",
    scope: Annotated[
        list[str] | None, typer.Option(help="inference, models or usage; repeat for several. [default: all]")
    ] = None,
    expires: Annotated[str, typer.Option(help="30, 90 or 365 days, or never.")] = "never",
    rate: Rate = None,
    burst: Burst = None,
    config: Config = None,
) -> None:
    """Make a key. It is printed once, alone on standard output."""
    order = control.KeyOrder(name, scope or [], expires, control.KeyLimits(rate, burst))
    secret, key = with_store(config, lambda db: control.create_key(db, account, order, now_ms()))
    typer.echo(secret)
    until = f"It expires at {when(key.expires_at)}." if key.expires_at else "It does not expire."
    say(f"This key is shown once; only its hash is kept. {until}")
    say(f"Scopes: {', '.join(key.scopes)}. To revoke it: cadenza key revoke {key.id}")


@keys.command("list")
def list_(account: Account, as_json: AsJson = False, config: Config = None) -> None:
    """List an account's keys."""
    rows = [
        msgspec.structs.asdict(key)
        | {
            "created_at": when(key.created_at),
            "expires_at": when(key.expires_at),
            "last_used_at": when(key.last_used_at),
        }
        for key in with_store(config, lambda db: control.list_keys(db, account, now_ms()))
    ]
    print_list(rows, COLUMNS, as_json=as_json)


@keys.command()
def limit(key: Key, rate: Rate = None, burst: Burst = None, config: Config = None) -> None:
    """Give a key a rate of its own; without --rate and --burst it has the usual one again."""
    limits = control.KeyLimits(rate, burst)
    view = with_store(config, lambda db: control.limit_key(db, key, limits, now_ms()))
    say(f"The key {view.prefix}… ({view.id}) {_limits_said(limits)}")


@keys.command()
def revoke(
    key: Key,
    config: Config = None,
) -> None:
    """Revoke a key. It stops working at once."""
    revocation = with_store(config, lambda db: control.revoke_key(db, key, now_ms()))
    word = "was revoked already" if revocation.was_revoked else "is revoked"
    say(f"The key {revocation.key.prefix}… ({revocation.key.id}) {word}.")


def _limits_said(limits: control.KeyLimits) -> str:
    if limits == control.KeyLimits():
        return "has the usual rate again."
    rate = (
        "as many requests a second as any"
        if limits.requests_per_second is None
        else f"{limits.requests_per_second:g} requests a second"
    )
    burst = "as many at once as any" if limits.burst is None else f"{limits.burst} at once"
    return f"may make {rate}, and {burst}."
