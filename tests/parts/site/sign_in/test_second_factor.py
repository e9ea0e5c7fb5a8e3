"""Codes of the second factor are accepted once, even at the same instant."""

from base64 import b32decode
from collections.abc import Awaitable

import pytest

from cadenza.core.errors import ControlError
from cadenza.core.records import COMMAND_LINE
from cadenza.parts.site.accounts import remove_second_factors
from cadenza.parts.site.sign_in.second_factor import (
    STEP_S,
    Code,
    Sealer,
    begin_totp,
    code_at,
    confirm_totp,
    remove_totp,
    renew_codes,
    use_second_factor,
)
from cadenza.parts.site.tables.second_factors import get_factors
from cadenza.store.store import Store
from cadenza.store.tables.accounts import Account
from tests.parts.site.sign_in.conftest import NOW_MS, make_account

STEP_MS = STEP_S * 1000


def code_of(text: str, now_ms: int) -> str:
    """What the app shows that was given this text."""
    return code_at(b32decode(text.replace(" ", "")), now_ms // STEP_MS)


async def enrol(store: Store, account: Account) -> tuple[str, list[str]]:
    """The secret of a confirmed app, and the recovery codes."""
    text = (await begin_totp(store, Sealer(store), account)).text
    return text, await confirm_totp(store, Sealer(store), account, code_of(text, NOW_MS), NOW_MS)


async def succeeds(work: Awaitable[None]) -> bool:
    try:
        await work
    except ControlError:
        return False
    return True


async def use(store: Store, account: Account, code: str, now_ms: int = NOW_MS) -> bool:
    return await succeeds(use_second_factor(store, Sealer(store), account, Code.parse(code), now_ms))


async def test_an_app_counts_once_it_is_confirmed(store: Store, account: Account) -> None:
    """A secret that nobody has confirmed is no second factor, and its codes are refused."""
    text = (await begin_totp(store, Sealer(store), account)).text
    assert not (await get_factors(store, account.id)).is_any
    assert not await use(store, account, code_of(text, NOW_MS))
    with pytest.raises(ControlError, match="wrong"):
        await confirm_totp(store, Sealer(store), account, "000000", NOW_MS)
    assert len(await confirm_totp(store, Sealer(store), account, code_of(text, NOW_MS), NOW_MS)) == 10
    assert (await get_factors(store, account.id)).has_totp


async def test_a_code_is_accepted_once(store: Store, account: Account) -> None:
    """The code that confirmed the app is refused, the next is accepted once, and an older one never again."""
    text, _ = await enrol(store, account)
    later_ms = NOW_MS + STEP_MS
    assert not await use(store, account, code_of(text, NOW_MS))
    assert await use(store, account, code_of(text, later_ms), later_ms)
    assert not await use(store, account, code_of(text, later_ms), later_ms)
    assert not await use(store, account, code_of(text, NOW_MS), later_ms)


async def test_a_recovery_code_may_be_typed_carelessly(store: Store, account: Account) -> None:
    """Case, spaces and dashes do not matter; the code of another account does not work."""
    _, codes = await enrol(store, account)
    other = await make_account(store, "other@example.org")
    assert not await use(store, other, codes[0])
    assert await use(store, account, f" {codes[0].upper().replace('-', ' ')} ")
    assert (await get_factors(store, account.id)).recovery_codes == 9


async def test_a_confirmed_app_is_not_replaced(store: Store, account: Account) -> None:
    """Beginning again does not turn the second factor off."""
    await enrol(store, account)
    with pytest.raises(ControlError, match="Remove it first"):
        await begin_totp(store, Sealer(store), account)
    assert (await get_factors(store, account.id)).has_totp


async def test_new_codes_replace_the_old(store: Store, account: Account) -> None:
    """Old recovery codes stop working; without a second factor there are none."""
    _, old = await enrol(store, account)
    new = await renew_codes(store, account, NOW_MS)
    assert not await use(store, account, old[0])
    assert await use(store, account, new[0])
    await remove_totp(store, account, NOW_MS)
    assert (await get_factors(store, account.id)).recovery_codes == 0
    with pytest.raises(ControlError, match="belong to a second factor"):
        await renew_codes(store, account, NOW_MS)


async def test_an_operator_can_remove_them_all(store: Store, account: Account) -> None:
    """For an owner who has lost everything, the command line removes app and codes."""
    await enrol(store, account)
    await remove_second_factors(store, account.email, COMMAND_LINE, NOW_MS)
    factors = await get_factors(store, account.id)
    assert (factors.is_any, factors.recovery_codes) == (False, 0)
