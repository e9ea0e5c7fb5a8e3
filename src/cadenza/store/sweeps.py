"""Ends what a dead process left behind: its reserves are freed, and what its requests had delivered is charged.

One transaction, once: it removes the row of the process too, and the tables refuse that while anything refers to it.
"""

from sqlalchemy import ColumnElement, and_, bindparam, delete, literal_column, select, text, update

from cadenza.core.ledger import Demand, End, OpenHold
from cadenza.core.records import Outcome, Usage
from cadenza.store import ledger
from cadenza.store.caps import HOLDS_OF_PROCESS, drop_holds
from cadenza.store.ledger import AccountMoves
from cadenza.store.schema import holds, idempotency, marks
from cadenza.store.statements import Statement
from cadenza.store.store import Transaction

INTERRUPTED_STATUS = 500
ENDPOINT = "chat"  # the one endpoint whose requests hold credit
NOTHING_WANTED = Demand(kept_nano=0, in_use_nano=0, wanted_nano=0, usual_nano=0)
HOLD_FIELDS = OpenHold._fields[:-2]
KEY = idempotency.c

MARKED = Statement(
    select(*[literal_column("0") if name == "amount_nano" else marks.c[name] for name in HOLD_FIELDS], KEY.digest)
    .outerjoin_from(
        marks, idempotency, and_(KEY.completion_id == marks.c.completion_id, KEY.process == marks.c.process)
    )
    .where(marks.c.process == bindparam("of"))
)
ACCOUNTS_OF_KEYS = Statement(select(KEY.account_id).where(KEY.process == bindparam("of")).distinct())
KEPT_KEYS = Statement(
    update(idempotency)
    .where(
        idempotency.c.process == bindparam("of"),
        idempotency.c.completion_id.in_(select(marks.c.completion_id).where(marks.c.process == bindparam("of"))),
    )
    .values(process=None)
)
FREED_KEYS = Statement(delete(idempotency).where(idempotency.c.process == bindparam("of")))

# The release before held credit by request, in the table `holds`.
OPEN: ColumnElement[str] = literal_column("'open'")
OLD_OWNERS = Statement(select(holds.c.owner).where(holds.c.state == OPEN).distinct())
OLD_HOLDS = Statement(
    select(*[holds.c[name] for name in HOLD_FIELDS])
    .where(holds.c.state == OPEN, holds.c.owner == bindparam("of"))
    .order_by(holds.c.account_id)
    .with_for_update()
)
END_OLD_HOLD = Statement(
    update(holds)
    .where(holds.c.completion_id == bindparam("completion"), holds.c.state == OPEN)
    .values(state=bindparam("new_state"), ended_at=bindparam("at"))
)
TRY_OLD_LOCK = Statement(text("SELECT pg_try_advisory_xact_lock(CAST(:number AS bigint))"))
GIVE_BACK_OLD = Statement(text("UPDATE accounts SET held_nano = held_nano - :amount WHERE id = :account"))


def free_process(tx: Transaction, name: str, now_ms: int) -> list[Outcome]:
    """Free the reserves of a dead process and charge its marks. Return the outcomes of the charged requests.

    What it held of spend caps is freed first: its requests are charged as far as the caps of their keys allow. The
    idempotency keys of unmarked requests are freed under the locks of their accounts, so that a request which ends at
    the same moment has its key or is lost.
    """
    account_ids = {account_id for (account_id,) in tx.rows(ledger.RESERVED, {"me": name})}
    capped = {account_id for account_id, _ in tx.rows(HOLDS_OF_PROCESS, {"process": name})}
    marked = [OpenHold(*row)._replace(is_capped=True) for row in tx.rows(MARKED, {"of": name})]
    keyed = {account_id for (account_id,) in tx.rows(ACCOUNTS_OF_KEYS, {"of": name})}
    account_ids |= capped | keyed | {hold.account_id for hold in marked}
    ledger.lock_accounts(tx, name, sorted(account_ids))
    if capped:
        drop_holds(tx, name)
    ends = [_interrupted(hold, now_ms, is_marked=True) for hold in marked]
    tx.change(KEPT_KEYS, {"of": name})
    tx.change(FREED_KEYS, {"of": name})
    return _apply(tx, name, account_ids, ends)


def end_old_holds(tx: Transaction, owner: str, now_ms: int) -> list[Outcome]:
    """End the holds of a dead process of the release before."""
    open_holds = [OpenHold(*row) for row in tx.rows(OLD_HOLDS, {"of": owner})]
    ends = [_interrupted(hold, now_ms) for hold in open_holds]
    ledger.lock_accounts(tx, owner, sorted({hold.account_id for hold in open_holds}))
    for end in ends:
        new_state = "settled" if end.outcome.usage else "released"
        tx.change(END_OLD_HOLD, {"completion": end.hold.completion_id, "new_state": new_state, "at": now_ms})
        tx.change(GIVE_BACK_OLD, {"account": end.hold.account_id, "amount": end.hold.amount_nano})
    return _apply(tx, owner, set(), ends)


def _apply(tx: Transaction, name: str, account_ids: set[str], ends: list[End]) -> list[Outcome]:
    """Return the outcomes of the requests that ended now. The others had ended before."""
    account_ids |= {end.hold.account_id for end in ends}
    moves = [
        AccountMoves(account_id, NOTHING_WANTED, [end for end in ends if end.hold.account_id == account_id], [])
        for account_id in sorted(account_ids)
    ]
    applied = ledger.apply_moves(tx, name, moves, is_fenced=False)
    return [
        end.outcome
        for move in moves
        for end, ended in zip(move.ends, applied[move.account_id].ended, strict=True)
        if not ended.is_repeated and not ended.is_lost
    ]


def _interrupted(hold: OpenHold, now_ms: int, *, is_marked: bool = False) -> End:
    """The end of a request whose process died, from the last mark of what it delivered."""
    usage = Usage(hold.prompt_tokens, hold.delivered_tokens, estimated=True) if hold.delivered_tokens else None
    outcome = Outcome(
        request_id=hold.request_id,
        completion_id=hold.completion_id,
        account_id=hold.account_id,
        key_id=hold.key_id,
        class_id=hold.class_id,
        endpoint=ENDPOINT,
        status=INTERRUPTED_STATUS,
        usage=usage,
        duration_ms=max(0, now_ms - hold.started_at),
        ended_at=now_ms,
    )
    return End(outcome, hold, hold.due_nano(usage), is_marked=is_marked, is_uncertain=True, source="sweep")
