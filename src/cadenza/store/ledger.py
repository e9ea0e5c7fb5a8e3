"""The ledger: append-only entries, the balance of each account that caches their sum, and holds on it.

Invariants, each kept in one transaction with the entry that touches it; `store/audit.py` proves them on the live store:
- an account's balance is the sum of its entries, its held sum the sum of its open holds; only this file moves them;
- they move by conditional UPDATEs that check and move in one: what is held never exceeds the balance;
- a hold ends once (open -> settled | released), and a request is charged at most once, at the prices of its hold.
A fault rolls back the whole transaction: there is no entry without its move, and no move without its entry.
"""

from typing import Any, NamedTuple

import msgspec
from sqlalchemy import ColumnElement, bindparam, delete, insert, literal_column, select, text, update

from cadenza.core.money import Price
from cadenza.core.records import Usage
from cadenza.core.tokens import OUTPUT_TOKENS_MIN
from cadenza.store.schema import accounts, entries, holds, idempotency, usage
from cadenza.store.statements import Executor, Statement

BALANCE_NANO_LIMIT = 2**62
IDEMPOTENCY_MS = 24 * 60 * 60 * 1000
INTERRUPTED_STATUS = 500
NOTHING = Usage(0, 0)
UNCOUNTED_TIMES = 256  # as much must be free as for so many requests like it


class Hold(msgspec.Struct, frozen=True):
    """What a request wants held before it is served. The price is a snapshot: the charge is made at it.

    A prompt that is not counted has at most so many tokens. That is only for accounts with far more credit than it
    takes: near the end of a credit nothing is held that need not be.
    """

    request_id: str
    account_id: str
    key_id: str
    class_id: str
    prompt_tokens: int
    allowance_tokens: int
    price: Price
    stream: bool
    started_at: int
    is_counted: bool = True  # the prompt; else its tokens are the most that it can have
    shown_id: str = ""
    idempotency_digest: bytes | None = None

    def least_nano(self, amount_nano: int) -> int:
        """What an account must have free for this to be held."""
        return amount_nano if self.is_counted else amount_nano * UNCOUNTED_TIMES


class Held(msgspec.Struct, frozen=True):
    """A hold that was taken: the output that it pays for, and what the account has left beside it."""

    allowance_tokens: int
    left_nano: int


class Insufficient(msgspec.Struct, frozen=True):
    """The balance, less what is held, does not pay for the request."""

    free_nano: int
    needed_nano: int


class Repeated(msgspec.Struct, frozen=True):
    """The idempotency key was seen: by which request."""

    request_id: str
    shown_id: str


class End(msgspec.Struct, frozen=True):
    """How a request ended: with a usage to be charged, or without one and for nothing. No content."""

    request_id: str
    account_id: str
    usage: Usage | None
    provider: str
    model: str
    status: int
    first_byte_ms: int | None
    duration_ms: int
    ended_at: int


class Ended(msgspec.Struct, frozen=True):
    """What ending a hold did. Short: what was due and the account could not pay; not `first`: it had ended before."""

    is_first: bool
    charged_nano: int = 0
    short_nano: int = 0


class OpenHold(NamedTuple):
    """What must be known of a hold to end it."""

    request_id: str
    account_id: str
    key_id: str
    class_id: str
    amount_nano: int
    prompt_tokens: int
    delivered_tokens: int
    input_nano: int
    output_nano: int
    cached_input_nano: int | None
    stream: bool
    started_at: int

    @classmethod
    def of(cls, hold: Hold, allowance_tokens: int) -> "OpenHold":
        """As it is when it was just taken."""
        price = hold.price
        return cls(
            hold.request_id,
            hold.account_id,
            hold.key_id,
            hold.class_id,
            price.quote(hold.prompt_tokens, allowance_tokens),
            hold.prompt_tokens,
            0,
            price.input_nano,
            price.output_nano,
            price.cached_input_nano,
            hold.stream,
            hold.started_at,
        )

    def charge(self, counted: Usage) -> int:
        """What is due for this, at the prices of the hold."""
        return Price(self.input_nano, self.output_nano, self.cached_input_nano).charge(counted)


OPEN: ColumnElement[str] = literal_column("'open'")  # and no parameter: then the index of open holds can be used
free = accounts.c.balance_nano - accounts.c.held_nano
OPEN_HOLD = [holds.c[name] for name in OpenHold._fields]
GRANT = Statement(
    update(accounts)
    .where(accounts.c.id == bindparam("account"), accounts.c.balance_nano < bindparam("most"))
    .values(balance_nano=accounts.c.balance_nano + bindparam("amount"))
    .returning(accounts.c.balance_nano)
)
TAKE = Statement(
    update(accounts)
    .where(accounts.c.id == bindparam("account"), free >= bindparam("least"))
    .values(held_nano=accounts.c.held_nano + bindparam("amount"))
    .returning(free)
)
READ_FREE = Statement(select(free).where(accounts.c.id == bindparam("account")).with_for_update())
ADD_HOLD = Statement(insert(holds), *OpenHold._fields, "owner", "state")
_END = (
    update(holds)
    .where(holds.c.request_id == bindparam("request"), holds.c.state == OPEN)
    .values(state=bindparam("new_state"), ended_at=bindparam("at"))
)
END_HOLD = Statement(_END.returning(*OPEN_HOLD))
END_KNOWN_HOLD = Statement(_END)
GIVE_BACK = Statement(
    update(accounts)
    .where(accounts.c.id == bindparam("account"))
    .values(held_nano=accounts.c.held_nano - bindparam("amount"))
)
PAY = Statement(
    update(accounts)
    .where(
        accounts.c.id == bindparam("account"),
        accounts.c.balance_nano - bindparam("charge") >= accounts.c.held_nano - bindparam("amount"),
    )
    .values(
        held_nano=accounts.c.held_nano - bindparam("amount"),
        balance_nano=accounts.c.balance_nano - bindparam("charge"),
    )
)
MOVE = Statement(  # what many requests of an account move, in one
    update(accounts)
    .where(accounts.c.id == bindparam("account"), free - bindparam("charge") + bindparam("back") >= bindparam("least"))
    .values(
        held_nano=accounts.c.held_nano - bindparam("back") + bindparam("amount"),
        balance_nano=accounts.c.balance_nano - bindparam("charge"),
    )
    .returning(free)
)
MARK = Statement(
    update(holds)
    .where(
        holds.c.request_id == bindparam("request"),
        holds.c.state == OPEN,
        holds.c.delivered_tokens < bindparam("tokens"),
    )
    .values(delivered_tokens=bindparam("tokens"), prompt_tokens=bindparam("prompt"))
)
ADD_ENTRY = Statement(insert(entries), "account_id", "kind", "amount_nano", "request_id", "note", "created_at")
ADD_USAGE = Statement(insert(usage), *usage.c.keys())
SEE_KEY = Statement(
    text(
        "INSERT INTO idempotency (account_id, digest, request_id, shown_id, created_at)"
        " VALUES (:account, :digest, :request, :shown, :at) ON CONFLICT DO NOTHING"
    )
)
SEEN_KEY = Statement(
    select(idempotency.c.request_id, idempotency.c.shown_id, idempotency.c.created_at, holds.c.state)
    .join_from(idempotency, holds, idempotency.c.request_id == holds.c.request_id, isouter=True)
    .where(idempotency.c.account_id == bindparam("account"), idempotency.c.digest == bindparam("key"))
)
FORGET_KEY = Statement(
    delete(idempotency).where(
        idempotency.c.account_id == bindparam("account"), idempotency.c.digest == bindparam("key")
    )
)
FORGET_OLD_KEYS = Statement(delete(idempotency).where(idempotency.c.created_at < bindparam("before")))
OPEN_OWNERS = Statement(select(holds.c.owner).where(holds.c.state == OPEN).distinct())
OPEN_OF = Statement(
    select(*OPEN_HOLD).where(holds.c.state == OPEN, holds.c.owner == bindparam("of")).order_by(holds.c.account_id)
)


def grant(connection: Executor, account_id: str, amount_nano: int, note: str, now_ms: int) -> int:
    """Add credit; the new balance."""
    assert 0 < amount_nano < BALANCE_NANO_LIMIT, "a grant is more than zero and below the limit"
    values = {"account": account_id, "amount": amount_nano, "most": BALANCE_NANO_LIMIT - amount_nano}
    moved = GRANT.row(connection, values)
    if moved is None:  # no `assert`, for `python -O` would then append an entry that moved nothing
        raise AssertionError("no such account, or a balance past its limit")
    ADD_ENTRY.change(
        connection,
        {
            "account_id": account_id,
            "kind": "grant",
            "amount_nano": amount_nano,
            "request_id": None,
            "note": note,
            "created_at": now_ms,
        },
    )
    return int(moved[0])


def take_hold(connection: Executor, hold: Hold, owner: str) -> Held | Insufficient | Repeated:
    """Hold the whole allowance, or what of it the account can pay for."""
    if hold.idempotency_digest and (seen := _see_key(connection, hold, hold.idempotency_digest)):
        return seen
    allowance_tokens = hold.allowance_tokens
    left_nano = _take(connection, hold, allowance_tokens)
    if left_nano is None:
        free_nano = _free_nano(connection, hold.account_id)
        allowance_tokens = min(allowance_tokens, hold.price.affordable(free_nano, hold.prompt_tokens))
        if hold.is_counted and allowance_tokens >= min(OUTPUT_TOKENS_MIN, hold.allowance_tokens):
            left_nano = _take(connection, hold, allowance_tokens)
        if left_nano is None:
            if hold.idempotency_digest:
                FORGET_KEY.change(connection, {"account": hold.account_id, "key": hold.idempotency_digest})
            least_tokens = min(OUTPUT_TOKENS_MIN, hold.allowance_tokens)
            return Insufficient(free_nano, hold.price.quote(hold.prompt_tokens, least_tokens))
    ADD_HOLD.change(connection, hold_row(OpenHold.of(hold, allowance_tokens), owner))
    return Held(allowance_tokens, left_nano)


def end_hold(connection: Executor, end: End) -> Ended:
    """Settle or release. The second end of a hold does nothing and says so."""
    row = END_HOLD.row(connection, ending(end))
    return Ended(is_first=False) if row is None else settle(connection, OpenHold._make(row), end)


def settle(connection: Executor, ended: OpenHold, end: End) -> Ended:
    """Charge, or give back, what was held by a hold that has just been ended."""
    due_nano = charged_nano = 0
    if end.usage:
        due_nano = ended.charge(end.usage)
        charged_nano = _pay(connection, ended.account_id, ended.amount_nano, due_nano)
        ADD_ENTRY.change(connection, charge_row(ended, end, charged_nano))
    else:
        GIVE_BACK.change(connection, {"account": ended.account_id, "amount": ended.amount_nano})
    ADD_USAGE.change(connection, usage_row(ended, end, charged_nano))
    return Ended(is_first=True, charged_nano=charged_nano, short_nano=due_nano - charged_nano)


def mark_delivered(connection: Executor, delivered: dict[str, Usage]) -> None:
    """What each open request's prompt has, and what it has delivered so far: what a crash would leave to be charged."""
    marks = [
        {"request": request_id, "prompt": counted.prompt_tokens, "tokens": counted.completion_tokens}
        for request_id, counted in sorted(delivered.items())
    ]
    if marks:
        MARK.change_each(connection, marks)


def owners_with_open_holds(connection: Executor) -> list[str]:
    return [owner for (owner,) in OPEN_OWNERS.rows(connection, {})]


def end_holds_of(connection: Executor, owner: str, now_ms: int) -> int:
    """End what a dead process left open: settled by its mark where something was delivered, released otherwise."""
    left_open = OPEN_OF.rows(connection, {"of": owner})
    for hold in map(OpenHold._make, left_open):
        delivered = Usage(hold.prompt_tokens, hold.delivered_tokens, estimated=True) if hold.delivered_tokens else None
        duration_ms = max(0, now_ms - hold.started_at)
        end = End(hold.request_id, hold.account_id, delivered, "", "", INTERRUPTED_STATUS, None, duration_ms, now_ms)
        end_hold(connection, end)
    return len(left_open)


def forget_old_keys(connection: Executor, now_ms: int) -> None:
    FORGET_OLD_KEYS.change(connection, {"before": now_ms - IDEMPOTENCY_MS})


def _take(connection: Executor, hold: Hold, allowance_tokens: int) -> int | None:
    """The check and the move in one statement: what is left, or None where there is not enough."""
    amount_nano = hold.price.quote(hold.prompt_tokens, allowance_tokens)
    least_nano = hold.least_nano(amount_nano)
    left = TAKE.row(connection, {"account": hold.account_id, "amount": amount_nano, "least": least_nano})
    return None if left is None else int(left[0])


def _free_nano(connection: Executor, account_id: str) -> int:
    """What is not held; the account is locked from here on."""
    row = READ_FREE.row(connection, {"account": account_id})
    assert row
    return int(row[0])


def _pay(connection: Executor, account_id: str, held_nano: int, due_nano: int) -> int:
    """What was due, or, where it is more than the hold and all that is free, as much as there is."""
    values = {"account": account_id, "amount": held_nano, "charge": due_nano}
    if PAY.change(connection, values) == 1:
        return due_nano
    free_nano = _free_nano(connection, account_id)
    charge_nano = min(due_nano, held_nano + free_nano)  # the account is locked by now, and may have more than before
    paid = PAY.change(connection, values | {"charge": charge_nano})
    assert paid == 1
    return charge_nano


def ending(end: End) -> dict[str, Any]:
    return {"request": end.request_id, "new_state": "settled" if end.usage else "released", "at": end.ended_at}


def hold_row(hold: OpenHold, owner: str) -> dict[str, Any]:
    return {**hold._asdict(), "owner": owner, "state": "open"}


def charge_row(ended: OpenHold, end: End, charged_nano: int) -> dict[str, Any]:
    return {
        "account_id": ended.account_id,
        "kind": "charge",
        "amount_nano": -charged_nano,
        "request_id": ended.request_id,
        "note": "",
        "created_at": end.ended_at,
    }


def usage_row(ended: OpenHold, end: End, charged_nano: int) -> dict[str, Any]:
    counted = end.usage or NOTHING
    return {
        "request_id": ended.request_id,
        "account_id": ended.account_id,
        "key_id": ended.key_id,
        "class_id": ended.class_id,
        "provider": end.provider,
        "model": end.model,
        "prompt_tokens": counted.prompt_tokens,
        "cached_tokens": counted.cached_tokens,
        "completion_tokens": counted.completion_tokens,
        "cost_nano": charged_nano,
        "estimated": counted.estimated,
        "status": end.status,
        "stream": ended.stream,
        "started_at": ended.started_at,
        "first_byte_ms": end.first_byte_ms,
        "duration_ms": end.duration_ms,
    }


def _see_key(connection: Executor, hold: Hold, digest: bytes) -> Repeated | None:
    """Note the key, unless it was seen within a day by a request that is running or was charged.

    The account is locked first, so that of two requests with one key the second sees what the first did.
    """
    _free_nano(connection, hold.account_id)
    values = {
        "account": hold.account_id,
        "digest": digest,
        "request": hold.request_id,
        "shown": hold.shown_id,
        "at": hold.started_at,
    }
    if SEE_KEY.change(connection, values) == 1:
        return None
    seen = SEEN_KEY.row(connection, {"account": hold.account_id, "key": digest})
    assert seen
    request_id, shown_id, created_at, state = seen
    if state != "released" and created_at > hold.started_at - IDEMPOTENCY_MS:
        return Repeated(request_id, shown_id)
    FORGET_KEY.change(connection, {"account": hold.account_id, "key": digest})
    SEE_KEY.change(connection, values)
    return None
