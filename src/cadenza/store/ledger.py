"""The ledger: append-only entries and the balance of each account that caches their sum.

Invariants, each kept in one transaction with the entry that touches it:
- an account's balance is the sum of its entries; only this file moves it;
- a balance moves by one conditional UPDATE, never by a read and then a write;
- a balance is at least what is held and less than BALANCE_NANO_LIMIT.
A fault rolls back the caller's whole transaction: there is no entry without its move, and no move without its entry.
"""

from sqlalchemy.ext.asyncio import AsyncConnection

from cadenza.store.schema import accounts, entries

BALANCE_NANO_LIMIT = 2**62


async def grant(conn: AsyncConnection, account_id: str, amount_nano: int, note: str, now_ms: int) -> int:
    """Add credit; the new balance."""
    assert 0 < amount_nano < BALANCE_NANO_LIMIT, "a grant is more than zero and below the limit"
    moved = await conn.execute(
        accounts.update()
        .where(accounts.c.id == account_id, accounts.c.balance_nano < BALANCE_NANO_LIMIT - amount_nano)
        .values(balance_nano=accounts.c.balance_nano + amount_nano)
        .returning(accounts.c.balance_nano)
    )
    balance_nano: int | None = moved.scalar_one_or_none()
    if balance_nano is None:  # no `assert`, for `python -O` would then append an entry that moved nothing
        raise AssertionError("no such account, or a balance past its limit")
    await conn.execute(
        entries.insert().values(
            account_id=account_id, kind="grant", amount_nano=amount_nano, note=note, created_at=now_ms
        )
    )
    return balance_nano
