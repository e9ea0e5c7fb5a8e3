"""The credit of an account: corrections by an operator, and below which balance its owner wants a notice.

A correction takes free credit only, under the account's lock: never what requests in flight hold, never below zero.
What processes have reserved without need is asked back first.
"""

import asyncio

import msgspec

from cadenza.control.accounts import NOTE_CHARS_MAX, find_account, get_account
from cadenza.control.errors import ControlError
from cadenza.core.money import AMOUNT_NANO_MAX, format_dollars
from cadenza.store import acts, credit
from cadenza.store.acts import Act
from cadenza.store.changes import make_change
from cadenza.store.store import Store, Transaction

LOOK_S = 0.05
LOOKS = 20


class Correction(msgspec.Struct, frozen=True):
    """Credit that was taken back, and the balance since."""

    email: str
    taken_nano: int
    balance_nano: int


async def correct_credit(store: Store, email: str, amount_nano: int, reason: str, by: str, now_ms: int) -> Correction:
    """Take credit back. The amount is negative, as its entry will be."""
    if not -AMOUNT_NANO_MAX <= amount_nano < 0:
        raise ControlError("A correction takes credit back: write a negative amount, like -1.00.")
    reason = reason.strip()
    if not reason or len(reason) > NOTE_CHARS_MAX or not reason.isprintable():
        raise ControlError(f"A correction needs a reason: one line of at most {NOTE_CHARS_MAX} characters.")

    await gather_free_credit(store, (await get_account(store, email)).id, -amount_nano)

    def correct(tx: Transaction) -> Correction:
        account = find_account(tx, email)
        balance_nano = credit.take(tx, account.id, -amount_nano, reason, None, now_ms)
        if balance_nano is None:
            raise ControlError(_not_free(account.email, -amount_nano, *credit.lock_money(tx, account.id)))
        detail = f"{format_dollars(amount_nano)} dollars: {reason}"
        acts.add(tx, Act(now_ms, by, "credit.correct", account.id, detail=detail))
        return Correction(account.email, -amount_nano, balance_nano)

    return await make_change(store, correct)


async def gather_free_credit(store: Store, account_id: str, amount_nano: int) -> None:
    """If less than this is free, wait up to a second for what processes have reserved and do not use."""
    for _ in range(LOOKS):
        if await credit.read_free(store, account_id) >= amount_nano:
            return
        if not await credit.ask_for_spare(store, account_id):
            return
        await asyncio.sleep(LOOK_S)


async def set_low_balance(store: Store, account_id: str, below_nano: int, by: str, now_ms: int) -> None:
    """Below this balance its owner is told. Zero: never."""
    if not 0 <= below_nano <= AMOUNT_NANO_MAX:
        raise ControlError("Write an amount of dollars from zero, like 1.00.")

    def change(tx: Transaction) -> None:
        credit.notice_below(tx, account_id, below_nano)
        acts.add(tx, Act(now_ms, by, "credit.notice", account_id, detail=f"below {format_dollars(below_nano)} dollars"))

    await store.transact(change)


def _not_free(email: str, amount_nano: int, balance_nano: int, held_nano: int) -> str:
    return (
        f"{format_dollars(amount_nano)} dollars cannot be taken from {email}: the balance is "
        f"{format_dollars(balance_nano)}, of which running requests hold {format_dollars(held_nano)}; "
        f"{format_dollars(balance_nano - held_nano)} can be taken."
    )
