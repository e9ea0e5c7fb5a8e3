"""cadenza connect: the settings of a client, with a new key in them."""

import platform
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click

from cadenza.cli.running_service import address_of
from cadenza.cli.settings_files import draft_of, merge_settings
from cadenza.config import Settings
from cadenza.config.settings import is_public_http
from cadenza.control.account.accounts import get_account_or_only_one
from cadenza.control.client_settings import CLIENTS, SCOPES, ClientSettings
from cadenza.control.keys import NAME_CHARS_MAX, KeyOrder, create_key, revoke_key
from cadenza.core.records import CLASSES, COMMAND_LINE
from cadenza.store.tables.keys import OwnedKey
from cadenza.terminal.configured import read_store, settings_option, usable_class, with_owner, with_store
from cadenza.terminal.console import now_ms, say

ANY_CLASS = "auto"
ADDRESS = re.compile(r"https?://[\w.:\[\]-]+(/[\w./~-]*)?", re.ASCII)  # nothing that a shell or a file format reads
HELP = f"""Print the settings that connect CLIENT to this service, with a new key in them.

CLIENT is one of {", ".join(CLIENTS)}. With --write they are written into its file, where everything else stays as
it is; a setting that is there already is refused.
"""


@click.command(help=HELP)
@click.argument("client", type=click.Choice([*CLIENTS]), metavar="CLIENT")
@click.option("--account", metavar="EMAIL", show_default="the only one", help="The account that owns the key.")
@click.option("--url", show_default="as in the config", help="The address at which the client reaches the service.")
@click.option(
    "--class",
    "class_id",
    type=click.Choice([ANY_CLASS, *CLASSES]),
    default=ANY_CLASS,
    show_default=True,
    help="The class that the client uses.",
)
@click.option("--write", "writes", is_flag=True, help="Write them into its file, which only you can read then.")
@settings_option
def connect(client: str, account: str | None, url: str | None, class_id: str, writes: bool, settings: Settings) -> None:
    chosen, base = CLIENTS[client], _address(url, settings)
    model = class_id if class_id == ANY_CLASS else usable_class(settings, class_id)
    if writes and not chosen.file:
        raise ValueError(f"{chosen.title} reads no file: leave out --write, and run what the command prints.")
    owner = read_store(settings, lambda store: get_account_or_only_one(store, account))
    order = KeyOrder(f"{client} on {platform.node()}"[:NAME_CHARS_MAX], scopes=SCOPES)
    create = partial(with_owner, settings, owner.email, lambda store, by: create_key(store, by, order, now_ms()))
    if writes:
        key = write_settings(settings, chosen, partial(chosen.fill, base, model=model), create)
    else:
        secret, key = create()
        click.echo(chosen.fill(base, secret, model), nl=False)
        say(f"Put this into {chosen.file}, then start: {chosen.start}" if chosen.file else "Run this in your shell.")
    if is_public_http(base):
        say(f"{base} is not encrypted: use https where others can listen.")
    say(f"The key is named {key.name!r} and belongs to {owner.email}. To revoke it: cadenza key revoke {key.id}")


def write_settings(
    settings: Settings,
    client: ClientSettings,
    fill: Callable[[str], str],
    create: Callable[[], tuple[str, OwnedKey]],
) -> OwnedKey:
    """Write the settings of a client into its file. If that fails, no key stays: none is created, or it is revoked."""
    path = Path(client.file).expanduser()
    merge_settings(path, client.kind, fill("a key"))
    key = None
    try:
        with draft_of(path) as draft:
            secret, key = create()
            draft.write_bytes(merge_settings(path, client.kind, fill(secret)).encode())
    except BaseException:
        if key:
            with_store(settings, lambda store: revoke_key(store, COMMAND_LINE, key.id, now_ms()))
        raise
    say(f"Wrote {path}, which only you can read. Start: {client.start}")
    return key


def _address(url: str | None, settings: Settings) -> str:
    """The address of the service, without a slash or /v1 at its end."""
    found = (url or settings.site_url or address_of(settings.server)).rstrip("/").removesuffix("/v1")
    if not ADDRESS.fullmatch(found):
        raise ValueError(f"{found!r} is not an address: write --url like https://chat.example.org.")
    return found
