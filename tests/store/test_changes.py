"""Changes of keys, accounts and classes: each begins the next epoch and wakes every process."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from cadenza.control.class_versions import announce_reload
from cadenza.control.keys import KeyChange, KeyOrder, change_key, create_key, revoke_key
from cadenza.control.money.credit import give_credit
from cadenza.core.errors import ControlError
from cadenza.core.records import COMMAND_LINE, Owner
from cadenza.fleet.changes import make_change
from cadenza.fleet.presence import Presence
from cadenza.store.store import Store
from cadenza.store.tables import epochs
from tests.store.moves import PATIENCE_S, opened
from tests.store.rows import NOW_MS, add_account, add_key

EMAIL = "acct_a@example.org"

Command = Callable[[Store], Awaitable[object]]
LIMITS = KeyChange(requests_per_second=1.0, burst=1)
COMMANDS: dict[str, Command] = {
    "key create": lambda store: create_key(store, Owner("acct_a", EMAIL), KeyOrder(), NOW_MS),
    "key limit": lambda store: change_key(
        store, COMMAND_LINE, "key_a", KeyChange(requests_per_second=1.0, burst=1), NOW_MS
    ),
    "key revoke": lambda store: revoke_key(store, COMMAND_LINE, "key_a", NOW_MS),
    "account credit": lambda store: give_credit(store, EMAIL, 1, "", NOW_MS, COMMAND_LINE),
    "class reload": announce_reload,
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
async def test_a_command_begins_the_next_epoch(store: Store, command: Command) -> None:
    """One change is one epoch."""
    await add_account(store)
    await add_key(store)
    before = await epochs.current(store, epochs.CHANGES)
    await command(store)
    assert await epochs.current(store, epochs.CHANGES) == before + 1


async def test_every_process_is_told_of_a_change(store: Store, url: str) -> None:
    """Whoever follows the changes is called, in the process that makes one and in another."""
    async with opened(url) as beside, asyncio.timeout(PATIENCE_S):
        one, two = Presence(store), Presence(beside)
        told = [asyncio.Event(), asyncio.Event()]
        for presence, event in zip((one, two), told, strict=True):
            await presence.start()
            presence.on_change(event.set)
        for maker in (store, beside, store):
            await make_change(maker, lambda _: None)
            for event in told:
                await event.wait()
                event.clear()
        assert one.epoch == two.epoch == 3
        await one.stop()
        await two.stop()


async def test_a_change_that_fails_begins_no_epoch(store: Store) -> None:
    """The work and the epoch are one transaction."""

    def fail(_: object) -> None:
        raise ControlError("no")

    with pytest.raises(ControlError):
        await make_change(store, fail)
    assert await epochs.current(store, epochs.CHANGES) == 0
