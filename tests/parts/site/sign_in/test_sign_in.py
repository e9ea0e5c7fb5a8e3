"""Signing in: the same work for every address, limits that spare the owner, and lanes for hashes."""

import asyncio

import pytest

from cadenza.control.account.accounts import suspend_account
from cadenza.core.errors import ControlError
from cadenza.core.records import COMMAND_LINE
from cadenza.fleet.shared import MemoryRates
from cadenza.parts.site.accounts import set_operator, set_password
from cadenza.parts.site.sign_in.devices import Signer, find_device, remember_device
from cadenza.parts.site.sign_in.passwords import HashLane, PasswordWork
from cadenza.parts.site.sign_in.sign_in import (
    ACCOUNT_FAILURES,
    ALL_FAILURES,
    KNOWN_RATE,
    NETWORK_RATE,
    SHARE_FAILURES,
    SUSPENDED,
    TOO_MANY,
    WRONG_PASSWORD,
    SignInAttempt,
    SignIns,
)
from cadenza.parts.site.sign_in.throttle import Throttled
from cadenza.parts.site.tables.sessions import Session
from cadenza.store.store import Store
from cadenza.store.tables.accounts import Account
from tests.parts.site.sign_in.conftest import EMAIL, NOW_MS, PASSWORD, make_account
from tests.passwords import cheap_hash


@pytest.fixture
def sign_ins(store: Store) -> SignIns:
    """The clock of its rates stands still."""
    return SignIns(store, MemoryRates(lambda: 0), PasswordWork(), Signer(store))


async def attempt(
    sign_ins: SignIns, password: str = PASSWORD, email: str = EMAIL, network: str = "192.0.2.1", device: str = ""
) -> Account:
    return (await sign_ins.check_password(SignInAttempt(email, password, network, device))).account


@pytest.mark.slow(reason="hashes passwords")
@pytest.mark.parametrize("password", ["82736451", "xyzw" * 256, "pässwörd €"])
async def test_a_password_within_bounds_is_accepted(password: str) -> None:
    """The shortest, the longest and one beyond ASCII all work, and no other does."""
    work = PasswordWork()
    made = await work.hash(password, EMAIL)
    assert await work.matches(made, password)
    assert not await work.matches(made, password + "x")


async def test_the_right_password_returns_the_account(sign_ins: SignIns, account: Account) -> None:
    """The address may be typed in any case."""
    assert await attempt(sign_ins, email=" OWNER@example.org ") == account


@pytest.mark.parametrize("email", [EMAIL, "nobody@example.org", "no address"])
async def test_every_failure_takes_one_hash_and_says_the_same(sign_ins: SignIns, account: Account, email: str) -> None:
    """A wrong password, an unknown address and a malformed one get the same text after the same work."""
    with pytest.raises(ControlError, match=WRONG_PASSWORD):
        await attempt(sign_ins, "wrong password", email)
    assert sign_ins.passwords.finished == 1


async def test_a_suspended_account_is_told_so_only_with_its_password(
    store: Store, sign_ins: SignIns, account: Account
) -> None:
    """A stranger does not learn that the account is suspended."""
    await set_operator(store, EMAIL, COMMAND_LINE, NOW_MS, is_operator=False)
    await suspend_account(store, EMAIL, COMMAND_LINE, NOW_MS)
    with pytest.raises(ControlError, match=WRONG_PASSWORD):
        await attempt(sign_ins, "wrong password")
    with pytest.raises(ControlError, match=SUSPENDED):
        await attempt(sign_ins)


@pytest.mark.parametrize(
    "email", [EMAIL, pytest.param("nobody@example.org", marks=pytest.mark.slow(reason="hashes passwords"))]
)
async def test_attempts_on_an_address_are_limited_without_locking_its_owner_out(
    sign_ins: SignIns, account: Account, email: str
) -> None:
    """When many networks have used them up, a browser of the owner still signs in. An unknown address looks alike."""
    device = await remember_device(sign_ins.signer, "", account.id)
    for number in range(ACCOUNT_FAILURES.burst):
        with pytest.raises(ControlError, match=WRONG_PASSWORD):
            await attempt(sign_ins, "wrong password", email, f"192.0.2.{number}")
    with pytest.raises(Throttled, match=TOO_MANY):
        await attempt(sign_ins, email=email, network="198.51.100.1")
    assert await attempt(sign_ins, network="198.51.100.1", device=device) == account


@pytest.mark.parametrize(
    ("network", "factor"), [("2001:db8:0:{:x}00::1", 4), ("2001:db8:0:ff{:02x}::1", 2), ("10.0.0.{}", 4)]
)
async def test_a_wide_network_has_few_allowances(
    sign_ins: SignIns, account: Account, network: str, factor: int
) -> None:
    """All of a /48, a /56 or a /24 together get a few times what one network gets, however many addresses they use."""
    for number in range(factor * NETWORK_RATE.burst):
        await attempt(sign_ins, network=network.format(number % 250))
    with pytest.raises(Throttled, match=TOO_MANY):
        await attempt(sign_ins, network=network.format(250))


async def test_guesses_spread_over_the_networks_of_one_site_are_limited(store: Store, sign_ins: SignIns) -> None:
    """36 wrong passwords for 36 accounts, from 36 /64 of one /48, meet a 429; the next /48 does not."""
    emails = [f"{number}@example.org" for number in range(36)]
    for email in emails:
        await make_account(store, email)
    replies = list[str]()
    for number, email in enumerate(emails):
        with pytest.raises(ControlError) as refused:
            await attempt(sign_ins, "wrong password", email, f"2001:db8:0:{number:x}00::1")
        replies.append(refused.value.message)
    assert set(replies) == {WRONG_PASSWORD, TOO_MANY}
    with pytest.raises(ControlError, match=WRONG_PASSWORD):
        await attempt(sign_ins, "wrong password", emails[-1], "2001:db8:1::1")


@pytest.fixture
async def exhausted(store: Store, account: Account) -> SignIns:
    """Fifty networks have used up what all networks may fail together, each with as many accounts as it may."""
    sign_ins = SignIns(store, MemoryRates(lambda: 0), PasswordWork(decoy=cheap_hash("")), Signer(store))
    for number in range(ALL_FAILURES.burst):
        with pytest.raises(ControlError, match=WRONG_PASSWORD):
            await attempt(sign_ins, "wrong", f"{number}@example.org", f"10.0.{number % 50}.1")
    return sign_ins


async def test_fifty_networks_do_not_keep_the_others_out(exhausted: SignIns, account: Account) -> None:
    """A new browser signs in from another network, also after a mistake, and may make a few; then it waits."""
    with pytest.raises(ControlError, match=WRONG_PASSWORD):
        await attempt(exhausted, "a mistake", network="198.51.100.1")
    for _ in range(SHARE_FAILURES.burst + 1):
        assert await attempt(exhausted, network="198.51.100.1") == account
    for _ in range(SHARE_FAILURES.burst):
        with pytest.raises(ControlError, match=WRONG_PASSWORD):
            await attempt(exhausted, "wrong", "other@example.org", "203.0.113.1")
    with pytest.raises(Throttled, match=TOO_MANY):
        await attempt(exhausted, "wrong", "other@example.org", "203.0.113.1")


async def test_failures_of_all_networks_are_limited(exhausted: SignIns, account: Account) -> None:
    """A botnet of hundreds of networks is held back in the end; a browser of the owner still signs in."""
    failures = list[str]()
    for number in range(ALL_FAILURES.burst + 1):
        with pytest.raises(ControlError) as refused:
            await attempt(exhausted, "wrong", f"{number}@example.com", f"10.{1 + number // 250}.{number % 250}.1")
        failures.append(refused.value.message)
    assert failures == [WRONG_PASSWORD] * ALL_FAILURES.burst + [TOO_MANY]
    device = await remember_device(exhausted.signer, "", account.id)
    assert await attempt(exhausted, network="198.51.100.1", device=device) == account


async def test_a_success_gives_the_attempt_back(sign_ins: SignIns, account: Account) -> None:
    """Somebody who signs in often, rightly, is not limited by it."""
    for _ in range(ACCOUNT_FAILURES.burst + 2):
        assert await attempt(sign_ins) == account


async def test_one_account_does_not_fill_the_lane_of_known_browsers(sign_ins: SignIns, account: Account) -> None:
    """All its browsers together get a bounded number of hashes, even with the right password."""
    devices = [await remember_device(sign_ins.signer, "", account.id) for _ in range(KNOWN_RATE.burst)]
    session = Session(b"digest", account.id, "complete", "", NOW_MS, NOW_MS, NOW_MS, NOW_MS)
    for device in devices[1:]:
        assert await attempt(sign_ins, device=device) == account
    await sign_ins.check_again(account, session, PASSWORD)
    with pytest.raises(Throttled):
        await attempt(sign_ins, device=devices[0])
    with pytest.raises(Throttled):
        await sign_ins.check_again(account, session, PASSWORD)
    assert await attempt(sign_ins) == account


async def test_a_password_that_changed_meanwhile_is_not_the_right_one_any_more(
    store: Store, sign_ins: SignIns, account: Account
) -> None:
    """Who gave the old one cannot begin a session after the change."""
    checked = await sign_ins.check_password(SignInAttempt(EMAIL, PASSWORD, "192.0.2.1", ""))
    await store.transact(checked.require_unchanged)
    await set_password(store, EMAIL, "another horse", COMMAND_LINE, NOW_MS)
    with pytest.raises(ControlError, match=WRONG_PASSWORD):
        await store.transact(checked.require_unchanged)


async def test_a_device_is_of_its_account_alone(sign_ins: SignIns) -> None:
    """The cookie of a browser counts for the accounts that it signed in to, and cannot be forged."""
    cookie = await remember_device(sign_ins.signer, "", "acct_a")
    both = await remember_device(sign_ins.signer, cookie, "acct_b")
    for account_id in ("acct_a", "acct_b"):
        assert await find_device(sign_ins.signer, both, account_id)
    for forged in (cookie[:-1] + "A", "A" * 64, cookie + "." * 9999, "é" * 64):
        assert await find_device(sign_ins.signer, forged, "acct_c") is None
    assert await find_device(sign_ins.signer, cookie, "acct_b") is None


async def test_a_cookie_remembers_few_accounts(sign_ins: SignIns) -> None:
    """The cookie does not grow: the oldest account is forgotten, and of a longer one only the first few count."""
    cookie = ""
    for number in range(6):
        cookie = await remember_device(sign_ins.signer, cookie, f"acct_{number}")
    assert len(cookie.split(".")) == 4
    assert await find_device(sign_ins.signer, cookie, "acct_5")
    assert await find_device(sign_ins.signer, cookie, "acct_1") is None
    assert await find_device(sign_ins.signer, f"{'A' * 64}.{cookie}", "acct_2") is None


async def test_a_flood_of_strangers_does_not_delay_known_browsers() -> None:
    """A full lane refuses more at once, and the other lane still works."""
    work = PasswordWork(waiting_max=3)
    waiting = [asyncio.create_task(work.matches(None, "a guess")) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(Throttled):
        await work.matches(None, "a guess")
    assert not await work.matches(None, "a guess", HashLane.KNOWN)
    assert await asyncio.gather(*waiting) == [False] * 3


async def test_a_store_has_one_key_to_sign_with(store: Store) -> None:
    """Two processes on one store sign alike, even if both need the key at the same time."""
    first, second = await asyncio.gather(*(Signer(store).sign("purpose", b"part") for _ in range(2)))
    assert first == second
    assert first != await Signer(store).sign("purpose", b"pa", b"rt")
