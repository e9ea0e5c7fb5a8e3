"""cadenza memory add | list | remove."""

import click

from cadenza.config import Settings
from cadenza.control.account.accounts import get_account_or_only_one
from cadenza.core.records import COMMAND_LINE
from cadenza.parts.grounding.note_rows import OwnedNote
from cadenza.parts.grounding.notes import add_note, list_notes, remove_note
from cadenza.store.store import Store
from cadenza.terminal.configured import read_store, settings_option, with_owner, with_store
from cadenza.terminal.console import json_option, now_ms, print_list, say, to_row
from cadenza.terminal.lazy import CommandGroup

COLUMNS = ("id", "created_at", "changed_at", "text")

account_option = click.option("--account", metavar="EMAIL", required=True, help="The account whose notes these are.")


@click.group(cls=CommandGroup)
def memory() -> None:
    """Notes that the replies to an account may use."""


@memory.command()
@account_option
@click.argument("text")
@settings_option
def add(account: str, text: str, settings: Settings) -> None:
    """Add a note and print its id, alone on standard output."""
    note = with_owner(settings, account, lambda store, owner: add_note(store, owner, text, now_ms()))
    click.echo(note.id)
    say(f"The note is added. To delete it: cadenza memory remove {note.id}")


@memory.command("list")
@click.option("--account", metavar="EMAIL", help="The account whose notes these are.", show_default="the only account")
@json_option
@settings_option
def list_(account: str | None, as_json: bool, settings: Settings) -> None:
    """List the notes of an account, oldest first."""

    async def work(store: Store) -> list[OwnedNote]:
        return await list_notes(store, (await get_account_or_only_one(store, account)).owner)

    rows = [to_row(note, "id", "text", "created_at", "changed_at") for note in read_store(settings, work)]
    if not as_json:
        rows = [{**row, "text": " / ".join(str(row["text"]).splitlines())} for row in rows]
    print_list(rows, COLUMNS, as_json=as_json)


@memory.command()
@click.argument("note", metavar="ID")
@settings_option
def remove(note: str, settings: Settings) -> None:
    """Delete a note permanently."""

    async def work(store: Store) -> None:
        await remove_note(store, COMMAND_LINE, note, now_ms())
        await store.empty_log()

    with_store(settings, work)
    say("The note is deleted.")
