"""Links, second factors, passkeys and accounts of the site, on both databases."""

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from cadenza.parts.site.tables import links, second_factors, sessions, site_secrets
from cadenza.parts.site.tables.links import Link
from cadenza.parts.site.tables.second_factors import Passkey
from cadenza.parts.site.tables.sessions import Session
from cadenza.store.store import Store, StoreRefused, Transaction
from cadenza.store.tables import accounts
from cadenza.store.tables.accounts import Account, Preferences

NOW_MS = 1_800_000_000_000
ACCOUNT = Account("acct_a", "a@example.org", "forte", 0, 0, NOW_MS)
LINK = Link(b"l" * 32, "reset", "acct_a", "a@example.org", NOW_MS, NOW_MS + 1000)
PASSKEY = Passkey(b"credential", "acct_a", "Laptop", b"public", 0, NOW_MS)


@pytest.fixture
async def filled(store: Store) -> Store:
    await store.transact(lambda tx: accounts.add(tx, ACCOUNT, "hash"))
    return store


async def test_an_account_is_read_as_it_was_written(filled: Store) -> None:
    """Every way to find an account gives the same record, booleans included."""
    found = await accounts.get(filled, "acct_a")
    assert found == ACCOUNT
    assert found.uses_search is True
    assert await accounts.get_by_email(filled, "a@example.org") == ACCOUNT
    assert await accounts.get_with_password(filled, "a@example.org") == (ACCOUNT, "hash")
    assert await accounts.get_password(filled, "acct_a") == "hash"
    assert await accounts.list_all(filled) == [ACCOUNT]
    assert await filled.transact(lambda tx: accounts.find(tx, "acct_a")) == ACCOUNT


async def test_an_account_is_changed(filled: Store) -> None:
    """Each setter changes its own columns."""
    chosen = Preferences("mezzo", "dark", False, False)

    def change(tx: Transaction) -> None:
        accounts.change(tx, "acct_a", password_hash="new hash")
        accounts.change(tx, "acct_a", email="b@example.org", verified_at=NOW_MS)
        accounts.change(tx, "acct_a", is_operator=True)
        accounts.change(tx, "acct_a", suspended_at=NOW_MS)
        accounts.change(tx, "acct_a", **msgspec.structs.asdict(chosen))

    await filled.transact(change)
    changed = {"email": "b@example.org", "is_operator": True, "suspended_at": NOW_MS, "verified_at": NOW_MS}
    expected = msgspec.structs.replace(ACCOUNT, **changed, **msgspec.structs.asdict(chosen))
    assert await accounts.get_with_password(filled, "b@example.org") == (expected, "new hash")


async def test_two_accounts_cannot_have_one_address(filled: Store) -> None:
    """The database refuses an address that another account has."""
    other = Account("acct_b", "b@example.org", "forte", 0, 0, NOW_MS)
    await filled.transact(lambda tx: accounts.add(tx, other, "hash"))
    with pytest.raises(StoreRefused):
        await filled.transact(lambda tx: accounts.change(tx, "acct_b", email="a@example.org", verified_at=None))


async def test_only_one_account_is_the_first_operators(store: Store) -> None:
    """Of several that become the first operator at the same instant, one does."""

    def make(number: int) -> Callable[[Transaction], bool]:
        def work(tx: Transaction) -> bool:
            is_first = not accounts.lock_first_operator(tx)
            new = Account(f"acct_{number}", f"{number}@example.org", "forte", 0, 0, NOW_MS, is_operator=is_first)
            accounts.add(tx, new, "hash")
            return is_first

        return work

    found = await asyncio.gather(*(store.transact(make(number)) for number in range(4)))
    assert sorted(found) == [False, False, False, True]


async def test_the_link_of_the_first_operator_is_taken_once(store: Store) -> None:
    """A later link replaces an earlier one, and of several that take it at once one gets it."""
    await store.transact(lambda tx: site_secrets.replace_operator_link(tx, b"a" * 32))
    await store.transact(lambda tx: site_secrets.replace_operator_link(tx, b"b" * 32))
    assert [await site_secrets.is_operator_link(store, digest) for digest in (b"a" * 32, b"b" * 32)] == [False, True]
    taken = await asyncio.gather(
        *(store.transact(lambda tx: site_secrets.take_operator_link(tx, b"b" * 32)) for _ in range(4))
    )
    assert sorted(taken) == [False, False, False, True]


async def test_a_link_is_taken_once(filled: Store) -> None:
    """It is found for its purpose and in its time only, and of several that take it at once one gets it."""
    await filled.transact(lambda tx: links.add(tx, LINK))
    assert await links.get(filled, LINK.digest, "reset", NOW_MS) == LINK
    assert await links.get(filled, LINK.digest, "verify", NOW_MS) is None
    assert await links.get(filled, LINK.digest, "reset", NOW_MS + 1000) is None
    taken = await asyncio.gather(
        *(filled.transact(lambda tx: links.take(tx, LINK.digest, "reset", NOW_MS)) for _ in range(4))
    )
    assert [one for one in taken if one] == [LINK]


async def test_a_code_is_used_once(filled: Store) -> None:
    """A time step and a recovery code are accepted once, at the same instant too."""

    def enrol(tx: Transaction) -> None:
        second_factors.replace_totp(tx, "acct_a", b"secret")
        second_factors.replace_codes(tx, "acct_a", [b"a" * 32, b"b" * 32])

    await filled.transact(enrol)
    assert not (await second_factors.get_factors(filled, "acct_a")).is_any
    steps = await asyncio.gather(
        *(filled.transact(lambda tx: second_factors.use_step(tx, "acct_a", 7, NOW_MS)) for _ in range(3))
    )
    codes = await asyncio.gather(
        *(filled.transact(lambda tx: second_factors.use_code(tx, "acct_a", b"a" * 32)) for _ in range(3))
    )
    assert (sorted(steps), sorted(codes)) == ([False, False, True], [False, False, True])
    assert not await filled.transact(lambda tx: second_factors.use_step(tx, "acct_a", 6, NOW_MS))
    assert await second_factors.get_factors(filled, "acct_a") == second_factors.Factors(True, 0, 1)


async def test_a_passkey_answers_a_challenge_once(filled: Store) -> None:
    """A use is accepted only for a challenge that is newer than the last use."""
    await filled.transact(lambda tx: second_factors.add_passkey(tx, PASSKEY))
    assert await second_factors.get_passkey(filled, PASSKEY.id) == PASSKEY
    for asked_at, is_accepted in ((NOW_MS, True), (NOW_MS, False), (NOW_MS + 6, True)):
        used = await filled.transact(
            lambda tx, at=asked_at: second_factors.use_passkey(tx, PASSKEY, at, 1, at + 5)  # type: ignore[misc]
        )
        assert used is is_accepted
    assert not await filled.transact(lambda tx: second_factors.remove_passkey(tx, "acct_b", PASSKEY.id))
    assert await filled.transact(lambda tx: second_factors.remove_passkey(tx, "acct_a", PASSKEY.id))


async def test_the_least_used_sessions_end(filled: Store) -> None:
    """An account keeps the sessions that were used last."""
    for number in range(3):
        session = Session(bytes([number]) * 32, "acct_a", "complete", "", NOW_MS, NOW_MS + number, NOW_MS, NOW_MS + 99)
        await filled.transact(lambda tx, one=session: sessions.add(tx, one))  # type: ignore[misc]
    await filled.transact(lambda tx: sessions.remove_oldest(tx, "acct_a", "complete", 2))
    assert [one.digest[0] for one in await sessions.list_for_account(filled, "acct_a")] == [2, 1]
    found = await sessions.find(filled, bytes([2]) * 32)
    assert found
    assert found[1] == ACCOUNT


async def test_a_password_does_not_change_while_it_is_relied_on(filled: Store) -> None:
    """Only the hash that the account has now is its password."""
    await filled.transact(lambda tx: accounts.change(tx, "acct_a", password_hash="first"))
    assert await filled.transact(lambda tx: accounts.has_password(tx, "acct_a", "first"))
    assert not await filled.transact(lambda tx: accounts.has_password(tx, "acct_a", "second"))
    assert not await filled.transact(lambda tx: accounts.has_password(tx, "acct_x", "first"))


async def test_a_secret_is_made_once(store: Store) -> None:
    """Processes that need it at the same instant get the same one."""
    found = await asyncio.gather(*(site_secrets.get_or_make(store, "name") for _ in range(4)))
    assert len(set(found)) == 1
    assert len(found[0]) == 32
