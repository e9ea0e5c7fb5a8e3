"""Sessions: they end in time, rotate, and have names that people understand."""

import pytest

from cadenza.core.retention_limits import USUAL_LIMITS, RetentionLimits
from cadenza.parts.site.sign_in.sessions import (
    HALF_MS,
    PROOF_MS,
    SESSIONS_MAX,
    TOUCH_MS,
    begin_session,
    browser_name,
    find_session,
    list_sessions,
    rotate_session,
)
from cadenza.parts.site.tables.sessions import Stage
from cadenza.store.store import Store
from cadenza.store.tables.accounts import Account
from tests.parts.site.sign_in.conftest import NOW_MS

IDLE_MS, LONGEST_MS = USUAL_LIMITS.session_idle_ms, USUAL_LIMITS.session_ms
FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
SAFARI = (
    "Mozilla/5.0 (iPhone; CPU iPhone OS 18_5 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) "
    "Version/18.5 Mobile/15E148 Safari/604.1"
)


async def begin(store: Store, account: Account, stage: Stage = "complete", now_ms: int = NOW_MS) -> str:
    return await store.transact(lambda tx: begin_session(tx, account.id, stage, FIREFOX, now_ms))


async def test_a_session_ends_when_it_is_not_used(store: Store, account: Account) -> None:
    """A session that is used lives on; one that is not ends after a week."""
    secret = await begin(store, account)
    later_ms = NOW_MS + IDLE_MS - 1
    assert await find_session(store, secret, later_ms)
    assert await find_session(store, secret, later_ms + IDLE_MS - 1)
    assert await find_session(store, secret, later_ms + 3 * IDLE_MS) is None


async def test_a_session_ends_after_its_longest_time(store: Store, account: Account) -> None:
    """Use does not carry a session beyond 30 days, and rotating it does not either."""
    secret = await begin(store, account)
    for at_ms in range(NOW_MS, NOW_MS + LONGEST_MS, IDLE_MS // 2):
        found = await find_session(store, secret, at_ms)
        assert found
        rotated = await store.transact(lambda tx: rotate_session(tx, found.session, at_ms))  # noqa: B023 run at once
        assert rotated
        secret = rotated
    assert await find_session(store, secret, NOW_MS + LONGEST_MS) is None


async def test_half_a_sign_in_ends_soon(store: Store, account: Account) -> None:
    """There are ten minutes to give the second factor."""
    secret = await begin(store, account, "second_factor")
    assert await find_session(store, secret, NOW_MS + HALF_MS - 1)
    assert await find_session(store, secret, NOW_MS + HALF_MS) is None


async def test_a_rotated_secret_is_worthless(store: Store, account: Account) -> None:
    """After a rotation only the new secret works, and a session cannot be rotated twice."""
    secret = await begin(store, account)
    found = await find_session(store, secret, NOW_MS + PROOF_MS)
    assert found
    assert not found.is_proved(NOW_MS + PROOF_MS)
    new = await store.transact(lambda tx: rotate_session(tx, found.session, NOW_MS + PROOF_MS, is_proof=True))
    assert new
    assert await find_session(store, secret, NOW_MS) is None
    again = await find_session(store, new, NOW_MS + PROOF_MS)
    assert again
    assert again.is_proved(NOW_MS + PROOF_MS)
    assert await store.transact(lambda tx: rotate_session(tx, found.session, NOW_MS)) is None


async def test_an_account_has_a_bounded_number_of_sessions(store: Store, account: Account) -> None:
    """One more than the most ends the one that was used least recently."""
    secrets = [await begin(store, account, now_ms=NOW_MS + number) for number in range(SESSIONS_MAX + 1)]
    assert await find_session(store, secrets[0], NOW_MS) is None
    found = await find_session(store, secrets[-1], NOW_MS + TOUCH_MS)
    assert found
    assert len(await list_sessions(store, found.session, NOW_MS + TOUCH_MS)) == SESSIONS_MAX


@pytest.mark.parametrize(
    ("agent", "name"),
    [(FIREFOX, "Firefox on Linux"), (SAFARI, "Safari on iPhone"), ("curl/8.5", "curl"), ("", "Unknown browser")],
)
def test_a_browser_has_a_name(agent: str, name: str) -> None:
    """The list of sessions names browsers as people do."""
    assert browser_name(agent) == name


async def test_half_a_sign_in_ends_no_session(store: Store, account: Account) -> None:
    """Who has the password alone cannot sign the owner out by beginning many times."""
    secret = await begin(store, account)
    for number in range(SESSIONS_MAX + 1):
        await begin(store, account, "second_factor", NOW_MS + number)
    assert await find_session(store, secret, NOW_MS)


async def test_a_lower_limit_counts_for_sessions_that_are_there(store: Store, account: Account) -> None:
    """The config decides when a session ends, also if the session is older than the config."""
    secret, strict = await begin(store, account), RetentionLimits(session_days=2, session_idle_days=1)
    assert await find_session(store, secret, NOW_MS + strict.session_idle_ms - 1, strict)
    assert await find_session(store, secret, NOW_MS + strict.session_ms - 2, strict)
    assert await find_session(store, secret, NOW_MS + strict.session_ms, strict) is None
