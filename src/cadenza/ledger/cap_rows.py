"""Spend caps in the store: set by the control plane, and changed by the batches of the ledger. caps.py has the rules.

Caps, and what is spent and held of them, change only under the lock of their account. `accounts.has_caps` and
`keys.is_capped` say whether there is a cap, so that accounts and keys without one cost nothing.
"""

from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy import bindparam, delete, exists, insert, select, text, update

from cadenza.core.records import Cap
from cadenza.core.spans import DAY_MS, month_of, span_of
from cadenza.ledger.caps import CapState, CapStatus
from cadenza.ledger.rules import Hold
from cadenza.store.schema import accounts, cap_holds, caps, keys, usage_days
from cadenza.store.statements import SelectByIds, Statement, total
from cadenza.store.store import Row, Store, Transaction, change_row
from cadenza.store.tables.accounts import lock_account

_OF_KEY = caps.c.key_id == bindparam("key")


_HELD = select(total(cap_holds.c.amount_nano)).where(cap_holds.c.key_id == caps.c.key_id)
_READ = select(
    caps.c.key_id,
    caps.c.limit_nano,
    caps.c.period,
    caps.c.month,
    caps.c.spent_nano,
    caps.c.excused_nano,
    _HELD.scalar_subquery(),
    _HELD.where(cap_holds.c.process == bindparam("process")).scalar_subquery(),
)
READ = SelectByIds(_READ, caps.c.key_id)
SPENT = Statement(
    select(total(usage_days.c.cost_nano)).where(
        usage_days.c.key_id == bindparam("key"),
        usage_days.c.day >= bindparam("start_day"),
        usage_days.c.day < bindparam("end_day"),
    )
)
HELD = Statement(select(total(cap_holds.c.amount_nano)).where(cap_holds.c.key_id == bindparam("key")))
WRITE = Statement(
    update(caps)
    .where(_OF_KEY)
    .values(month=bindparam("new_month"), spent_nano=bindparam("spent"), excused_nano=bindparam("excused"))
)
WRITE_HOLD = Statement(
    text(
        "INSERT INTO cap_holds (key_id, process, amount_nano) VALUES (:key, :process, :amount)"
        " ON CONFLICT (key_id, process) DO UPDATE SET amount_nano = excluded.amount_nano"
    )
)
DROP_HOLD = Statement(text("DELETE FROM cap_holds WHERE key_id = :key AND process = :process"))
HOLDS_OF_PROCESS = Statement(
    select(keys.c.account_id, cap_holds.c.key_id)
    .join_from(cap_holds, keys)
    .where(cap_holds.c.process == bindparam("process"))
)
HELD_BY_PROCESS = Statement(
    select(cap_holds.c.amount_nano).where(
        cap_holds.c.key_id == bindparam("key"), cap_holds.c.process == bindparam("process")
    )
)
ADD = Statement(insert(caps), *caps.c.keys())
REMOVE = Statement(delete(caps).where(_OF_KEY))
REMOVE_HOLDS = Statement(delete(cap_holds).where(cap_holds.c.key_id == bindparam("key")))
FLAG_ACCOUNT = Statement(
    update(accounts)
    .where(accounts.c.id == bindparam("account"))
    .values(has_caps=exists().where(caps.c.account_id == accounts.c.id))
)


def set_cap(tx: Transaction, account_id: str, key_id: str, cap: Cap | None, now_ms: int) -> None:
    """Set, change or remove the cap of a key. What its requests of this period have cost is already spent."""
    lock_account(tx, account_id)
    tx.change(REMOVE, {"key": key_id})
    if cap is None:
        tx.change(REMOVE_HOLDS, {"key": key_id})
    else:
        month = month_of(cap.period, now_ms)
        spent_nano = _spent(tx, key_id, month)
        held_nano = _number(tx.row(HELD, {"key": key_id}))
        values = {
            "key_id": key_id,
            "account_id": account_id,
            "period": cap.period,
            "limit_nano": cap.limit_nano,
            "month": month,
            "spent_nano": spent_nano,
            "excused_nano": max(0, spent_nano + held_nano - cap.limit_nano),
        }
        tx.change(ADD, values)
    change_row(tx, keys, key_id, is_capped=cap is not None)
    tx.change(FLAG_ACCOUNT, {"account": account_id})


def read_caps(tx: Transaction, process: str, holds_by_key: Mapping[str, Sequence[Hold]]) -> dict[str, CapState]:
    """Read the caps of these keys, by key id, with what was spent in the months of these holds."""
    states: dict[str, CapState] = {}
    for row in tx.rows_by_ids(READ, sorted(holds_by_key), {"process": process}):
        key_id, limit_nano, period, month, spent_nano, excused_nano, held_nano, mine_nano = row
        state = CapState(
            key_id, Cap(limit_nano, period), month, spent_nano, excused_nano, int(held_nano), int(mine_nano)
        )
        for hold in holds_by_key[key_id]:
            other = month_of(period, hold.started_at)
            if other not in (month, *state.other_months_nano):
                state.other_months_nano[other] = _spent(tx, key_id, other)
        states[key_id] = state
    return states


def write_caps(tx: Transaction, process: str, before: dict[str, CapState], after: Iterable[CapState]) -> None:
    """Write the caps that a batch changed."""
    for state in after:
        was = before[state.key_id]
        assert not state.ending_nano, "every request that ended gave back its part"
        assert state.month >= was.month
        assert state.spent_nano + state.held_nano <= state.cap.limit_nano + state.excused_nano
        if (state.month, state.spent_nano, state.excused_nano) != (was.month, was.spent_nano, was.excused_nano):
            new = {"new_month": state.month, "spent": state.spent_nano, "excused": state.excused_nano}
            tx.change(WRITE, {"key": state.key_id, **new})
        if state.mine_nano != was.mine_nano:
            whose = {"key": state.key_id, "process": process}
            if state.mine_nano:
                tx.change(WRITE_HOLD, {**whose, "amount": state.mine_nano})
            else:
                tx.change(DROP_HOLD, whose)


async def find_cap(store: Store, key_id: str, now_ms: int) -> CapStatus | None:
    """What a key may still spend, before anything is held for it. None if it has no cap."""
    row = await store.row(READ.one, {"id": key_id, "process": ""})
    if row is None:
        return None
    _, limit_nano, period, month, spent_nano, _, held_nano, _ = row
    spent = int(spent_nano) if month_of(period, now_ms) == month else 0
    return CapStatus(Cap(limit_nano, period), spent, limit_nano - spent - int(held_nano))


def _spent(tx: Transaction, key_id: str, month: int) -> int:
    """What the requests of a key that started in this month have cost, or all of its requests."""
    first_ms, next_ms = span_of(month)
    return _number(tx.row(SPENT, {"key": key_id, "start_day": first_ms // DAY_MS, "end_day": next_ms // DAY_MS}))


def _number(row: Row | None) -> int:
    assert row
    return int(row[0])
