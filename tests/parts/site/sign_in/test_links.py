"""The first operator: made by the command line or by a one-time link, and by nothing else."""

import asyncio

import pytest

from cadenza.control.account.accounts import NewAccount, add_account
from cadenza.core.errors import ControlError
from cadenza.core.records import COMMAND_LINE
from cadenza.core.spans import DAY_MS
from cadenza.parts.site.accounts import set_operator
from cadenza.parts.site.sign_in.links import find_link, make_operator_link, print_link
from cadenza.parts.site.sign_in.passwords import PasswordWork
from cadenza.parts.site.sign_in.sign_up import SignUpChoice, find_invitation, join
from cadenza.parts.site.tables.links import LinkKind
from cadenza.store.store import Store
from cadenza.store.tables.accounts import Account

NOW_MS = 1_800_000_000_000
PASSWORD = "correct horse battery staple"


async def add(store: Store, email: str) -> Account:
    return await store.transact(lambda tx: add_account(tx, NewAccount(email, "hash"), None, NOW_MS))


async def make(store: Store, now_ms: int = NOW_MS) -> str:
    path = await make_operator_link(store, now_ms)
    assert path
    return path.rpartition("/")[2]


async def use(store: Store, secret: str, email: str, now_ms: int = NOW_MS) -> Account:
    invitation = await find_invitation(store, secret, now_ms)
    return await join(store, PasswordWork(), invitation, SignUpChoice(email, PASSWORD), 0, now_ms)


async def test_the_first_account_is_an_ordinary_one(store: Store) -> None:
    """Being first gives no rights: a stranger who signs up first is not an operator."""
    assert not (await add(store, "first@example.org")).is_operator


async def test_the_link_makes_one_operator(store: Store) -> None:
    """Of several who use the link at the same instant one is the operator, and it is dead afterwards."""
    secret = await make(store)
    emails = [f"{number}@example.org" for number in range(3)]
    made = await asyncio.gather(*(use(store, secret, email) for email in emails), return_exceptions=True)
    assert [one.is_operator for one in made if isinstance(one, Account)] == [True]
    with pytest.raises(ControlError, match="used before"):
        await use(store, secret, "late@example.org")
    assert await make_operator_link(store, NOW_MS) is None


async def test_a_later_link_replaces_an_earlier_one(store: Store) -> None:
    """A store has one link, also if several starts make one at the same instant."""
    secrets = await asyncio.gather(*(make(store) for _ in range(3)))
    found = await asyncio.gather(*(find_invitation(store, one, NOW_MS) for one in secrets), return_exceptions=True)
    [opened] = [one for one in found if not isinstance(one, BaseException)]
    await make(store)
    with pytest.raises(ControlError, match="used before"):
        await join(store, PasswordWork(), opened, SignUpChoice("late@example.org", PASSWORD), 0, NOW_MS)


async def test_the_link_expires(store: Store) -> None:
    """It works for a day, and its reader cannot give it a later end."""
    secret = await make(store)
    assert (await find_invitation(store, secret, NOW_MS + DAY_MS - 1)).is_operator
    longer = f"{NOW_MS + 2 * DAY_MS:x}.{secret.partition('.')[2]}"
    for dead in (secret, longer, "", "x", secret.partition(".")[2]):
        with pytest.raises(ControlError, match="expired"):
            await find_invitation(store, dead, NOW_MS + DAY_MS)


async def test_an_operator_ends_the_link(store: Store) -> None:
    """Once the command line has made an operator, the link is dead, also on a page that is open."""
    secret = await make(store)
    opened = await find_invitation(store, secret, NOW_MS)
    await add(store, "first@example.org")
    await set_operator(store, "first@example.org", COMMAND_LINE, NOW_MS, is_operator=True)
    with pytest.raises(ControlError):
        await find_invitation(store, secret, NOW_MS)
    with pytest.raises(ControlError, match="used before"):
        await join(store, PasswordWork(), opened, SignUpChoice("late@example.org", PASSWORD), 0, NOW_MS)


async def test_the_store_has_only_a_digest(store: Store) -> None:
    """Who reads the store cannot use the link."""
    secret = await make(store)
    assert store.path
    for file in store.path.parent.glob(f"{store.path.name}*"):
        assert secret.encode() not in file.read_bytes()


@pytest.mark.parametrize(
    ("kind", "lifetime_ms"), [("verify", 3 * DAY_MS), ("reset", DAY_MS // 24), ("change_email", DAY_MS)]
)
async def test_a_link_has_its_time(store: Store, kind: LinkKind, lifetime_ms: int) -> None:
    """A link for one purpose works until then, unless a later one for the same purpose replaces it."""
    await add(store, "first@example.org")

    async def make_at(now_ms: int) -> str:
        return (await print_link(store, "first@example.org", kind, COMMAND_LINE, now_ms)).rpartition("/")[2]

    earlier, secret = await make_at(NOW_MS - 1), await make_at(NOW_MS)
    for one, at_ms, works in ((secret, lifetime_ms - 1, True), (secret, lifetime_ms, False), (earlier, 0, False)):
        assert (await find_link(store, one, kind, NOW_MS + at_ms) is not None) is works
