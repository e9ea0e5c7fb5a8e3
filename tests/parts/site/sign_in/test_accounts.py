"""What the site does to accounts, and what it ends of one that is suspended."""

import pytest

from cadenza.control.account.accounts import NewAccount, add_account, resume_account, set_class, suspend_account
from cadenza.core.errors import ControlError
from cadenza.core.records import COMMAND_LINE, Operator
from cadenza.parts.site.accounts import set_operator, set_password
from cadenza.parts.site.sign_in.links import find_link, print_link
from cadenza.parts.site.sign_in.passwords import hash_password
from cadenza.parts.site.sign_in.sessions import begin_session, find_session
from cadenza.store.store import Store
from cadenza.store.tables.accounts import Account
from cadenza.store.tables.audit_events import list_newest

NOW_MS = 1_800_000_000_000
EMAIL = "owner@example.org"


async def add(store: Store) -> Account:
    return await store.transact(lambda tx: add_account(tx, NewAccount(EMAIL), COMMAND_LINE, NOW_MS))


@pytest.mark.parametrize(
    ("password", "reason"), [("1234567", "8 to 1024"), ("x" * 1025, "8 to 1024"), ("bad \udc80 bytes", "UTF-8")]
)
def test_an_impossible_password_is_refused(password: str, reason: str) -> None:
    """The refusal says what is possible, and does not repeat the password."""
    with pytest.raises(ControlError, match=reason) as caught:
        hash_password(password, EMAIL)
    assert password not in caught.value.message


def test_a_password_is_stored_as_a_hash() -> None:
    """It is one of argon2id, which does not have the password."""
    made = hash_password("correct horse", EMAIL)
    assert (made.startswith("$argon2id$"), "correct horse" in made) == (True, False)


async def test_a_suspension_ends_sessions_and_links(store: Store) -> None:
    """A suspended account has no live session and no link, and both stay dead when it is resumed."""
    account = await add(store)
    secret = await store.transact(lambda tx: begin_session(tx, account.id, "complete", "", NOW_MS))
    path = await print_link(store, EMAIL, "reset", COMMAND_LINE, NOW_MS)
    await set_operator(store, EMAIL, COMMAND_LINE, NOW_MS, is_operator=False)
    assert (await suspend_account(store, EMAIL, COMMAND_LINE, NOW_MS)).suspended_at == NOW_MS
    assert (await resume_account(store, EMAIL, COMMAND_LINE, NOW_MS)).suspended_at is None
    assert await find_session(store, secret, NOW_MS) is None
    assert await find_link(store, path.rpartition("/")[2], "reset", NOW_MS) is None


async def test_what_is_done_to_an_account_is_in_the_audit_trail(store: Store) -> None:
    """Each change writes who made it, and of which account."""
    account = await add(store)
    await set_class(store, EMAIL, "mezzo", Operator("somebody@example.org"), NOW_MS)
    await set_operator(store, EMAIL, COMMAND_LINE, NOW_MS, is_operator=False)
    await set_password(store, EMAIL, "another password", COMMAND_LINE, NOW_MS)
    written = await list_newest(store, account.id)
    assert [(one.event, one.actor, one.detail) for one in written] == [
        ("account.password", COMMAND_LINE.name, ""),
        ("account.ordinary", COMMAND_LINE.name, ""),
        ("account.class", "somebody@example.org", "mezzo"),
        ("account.create", COMMAND_LINE.name, ""),
    ]


async def test_the_last_operator_keeps_the_role_on_the_pages(store: Store) -> None:
    """Only the command line takes it from the last operator; with another one, an operator may."""
    await add(store)
    await set_operator(store, EMAIL, COMMAND_LINE, NOW_MS, is_operator=True)
    with pytest.raises(ControlError, match="is the last operator"):
        await set_operator(store, EMAIL, Operator(EMAIL), NOW_MS, is_operator=False)
    second = NewAccount("second@example.org", "hash", is_operator=True)
    await store.transact(lambda tx: add_account(tx, second, COMMAND_LINE, NOW_MS))
    assert not (await set_operator(store, EMAIL, Operator(second.email), NOW_MS, is_operator=False)).is_operator
    assert not (await set_operator(store, second.email, COMMAND_LINE, NOW_MS, is_operator=False)).is_operator
