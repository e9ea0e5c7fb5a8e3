"""Erasing an account: its personal data is deleted, irreversibly, and its keys stop at once, in every process.

The account is closed in one short transaction; what may be many rows is erased after it, in batches. If the process
ends before that, the next erasure, start or pass of the retention limits continues it.

Its entries and its usage stay under its id, without a name, so that the ledger still adds up. Remaining credit is
forfeited by a correction, which takes free credit only: while requests hold credit, the account is not erased.
SQLite's write-ahead log is emptied, so that it has no trace either.
"""

import msgspec

from cadenza.control.account.accounts import check_owner, find_account, get_account
from cadenza.core.errors import ControlError
from cadenza.core.money import format_dollars
from cadenza.core.records import COMMAND_LINE, Actor
from cadenza.fleet.changes import make_change
from cadenza.ledger import credit
from cadenza.ledger.origins import CreditMove
from cadenza.store.store import Store, Transaction
from cadenza.store.tables import audit_events, erasure
from cadenza.store.tables.audit_events import AuditEvent

NOTE = "left over when the account was erased"


class Erased(msgspec.Struct, frozen=True):
    """The id under which the entries and the usage of the account stay, and the credit that was forfeited.

    `leaves_log` if SQLite's write-ahead log could not be emptied: it may have what was erased until the service stops.
    """

    account_id: str
    forfeited_nano: int
    leaves_log: bool = False


async def erase_account(store: Store, email: str, by: Actor, now_ms: int) -> Erased:
    """Erase an account, and return when nothing is left."""
    erased = await begin_erasure(store, email, by, now_ms)
    return msgspec.structs.replace(erased, leaves_log=not await finish_erasures(store))


async def finish_erasures(store: Store) -> bool:
    """Erase what is left of erased accounts. False if SQLite's write-ahead log may still have some of it."""
    unfinished = await erasure.list_unfinished(store)
    for erasing in unfinished:
        await erasure.erase_remaining(store, erasing)
    return not unfinished or await store.empty_log()


async def begin_erasure(store: Store, email: str, by: Actor, now_ms: int) -> Erased:
    """Close an account and take out its address. Its owner may do it too, but not one who is an operator."""
    found = await get_account(store, email)
    await credit.gather_free(store, found.id, found.balance_nano)

    def erase(tx: Transaction) -> Erased:
        account = find_account(tx, email)
        check_owner(by, account)
        if account.is_operator and by != COMMAND_LINE:
            raise ControlError(f"{account.email} is an operator. Another operator must take the role away first.")
        money = credit.lock_money(tx, account.id)
        balance_nano = money.balance_nano
        if money.held_nano:
            raise ControlError(_is_in_use(account.email, money.held_nano, by))
        if balance_nano:
            credit.take(tx, CreditMove(account.id, "erasure", balance_nano, NOTE, now_ms, f"erasure:{account.id}"))
        erasure.begin(tx, account, now_ms)
        detail = f"{format_dollars(balance_nano)} dollars forfeited"
        audit_events.add(tx, AuditEvent(now_ms, by, erasure.ERASED, account.id, detail=detail))
        return Erased(account.id, balance_nano)

    return await make_change(store, erase)


def _is_in_use(email: str, held_nano: int, by: Actor) -> str:
    held = f"{email} cannot be erased now: requests of it hold {format_dollars(held_nano)} dollars. "
    if by != COMMAND_LINE:
        return f"{held}Revoke its keys, which ends the requests, and try again in a minute."
    return held + (
        f"Run 'cadenza account suspend {email}', which ends them within a second, and then this command again. "
        "If no request runs, a process died: start the service, which ends what it left."
    )
