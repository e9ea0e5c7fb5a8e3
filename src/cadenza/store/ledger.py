"""The ledger: append-only entries, the balance of each account that caches their sum, and holds on it.

Invariants, each kept in one transaction with the entry that touches it; `store/audit.py` proves them on the live store:
- an account's balance is the sum of its entries, its held sum the sum of its open holds; only this file moves them;
- they move by conditional UPDATEs that check and move in one: what is held never exceeds the balance;
- a hold ends once (open -> settled | released), and a request is charged at most once, at the prices of its hold.
A fault rolls back the whole transaction: there is no entry without its move, and no move without its entry.
"""

from typing import Literal

import msgspec
from sqlalchemy import Connection, bindparam, delete, insert, select, text, update

from cadenza.core.money import Price
from cadenza.core.records import Usage
from cadenza.core.tokens import OUTPUT_TOKENS_MIN
from cadenza.store.schema import accounts, entries, holds, idempotency, usage

BALANCE_NANO_LIMIT = 2**62
IDEMPOTENCY_MS = 24 * 60 * 60 * 1000
INTERRUPTED_STATUS = 500


class Hold(msgspec.Struct, frozen=True):
    """What a request wants held before it is served. The price is a snapshot: the charge is made at it."""

    request_id: str
    account_id: str
    key_id: str
    class_id: str
    prompt_tokens: int
    allowance_tokens: int
    price: Price
    stream: bool
    started_at: int
    shown_id: str = ""
    idempotency_digest: bytes | None = None


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


free = accounts.c.balance_nano - accounts.c.held_nano
TAKE = (
    update(accounts)
    .where(accounts.c.id == bindparam("account"), free >= bindparam("amount"))
    .values(held_nano=accounts.c.held_nano + bindparam("amount"))
    .returning(free)
)
READ_FREE = select(free).where(accounts.c.id == bindparam("account")).with_for_update()
ADD_HOLD = insert(holds)
END_HOLD = (
    update(holds)
    .where(holds.c.request_id == bindparam("request"), holds.c.state == "open")
    .values(state=bindparam("new_state"), ended_at=bindparam("at"))
    .returning(*holds.c)
)
GIVE_BACK = (
    update(accounts)
    .where(accounts.c.id == bindparam("account"))
    .values(held_nano=accounts.c.held_nano - bindparam("amount"))
)
PAY = (
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
MARK = (
    update(holds)
    .where(
        holds.c.request_id == bindparam("request"),
        holds.c.state == "open",
        holds.c.delivered_tokens < bindparam("tokens"),
    )
    .values(delivered_tokens=bindparam("tokens"))
)
ADD_ENTRY = insert(entries)
ADD_USAGE = insert(usage)
SEE_KEY = text(
    "INSERT INTO idempotency (account_id, digest, request_id, shown_id, created_at)"
    " VALUES (:account, :digest, :request, :shown, :at) ON CONFLICT DO NOTHING"
)
SEEN_KEY = (
    select(idempotency.c.request_id, idempotency.c.shown_id, idempotency.c.created_at, holds.c.state)
    .join_from(idempotency, holds, idempotency.c.request_id == holds.c.request_id, isouter=True)
    .where(idempotency.c.account_id == bindparam("account"), idempotency.c.digest == bindparam("key"))
)
FORGET_KEY = delete(idempotency).where(
    idempotency.c.account_id == bindparam("account"), idempotency.c.digest == bindparam("key")
)
FORGET_OLD_KEYS = delete(idempotency).where(idempotency.c.created_at < bindparam("before"))
OPEN_OWNERS = select(holds.c.owner).where(holds.c.state == "open").distinct()
OPEN_OF = select(*holds.c).where(holds.c.state == "open", holds.c.owner == bindparam("of")).order_by(holds.c.account_id)


def grant(connection: Connection, account_id: str, amount_nano: int, note: str, now_ms: int) -> int:
    """Add credit; the new balance."""
    assert 0 < amount_nano < BALANCE_NANO_LIMIT, "a grant is more than zero and below the limit"
    moved = connection.execute(
        update(accounts)
        .where(accounts.c.id == account_id, accounts.c.balance_nano < BALANCE_NANO_LIMIT - amount_nano)
        .values(balance_nano=accounts.c.balance_nano + amount_nano)
        .returning(accounts.c.balance_nano)
    )
    balance_nano: int | None = moved.scalar_one_or_none()
    if balance_nano is None:  # no `assert`, for `python -O` would then append an entry that moved nothing
        raise AssertionError("no such account, or a balance past its limit")
    _add_entry(connection, account_id, "grant", amount_nano, now_ms, note=note)
    return balance_nano


def take_hold(connection: Connection, hold: Hold, owner: str) -> Held | Insufficient | Repeated:
    """Hold the whole allowance, or what of it the account can pay for."""
    if hold.idempotency_digest and (seen := _see_key(connection, hold, hold.idempotency_digest)):
        return seen
    allowance_tokens = hold.allowance_tokens
    left_nano = _take(connection, hold, allowance_tokens)
    if left_nano is None:
        free_nano = connection.execute(READ_FREE, {"account": hold.account_id}).scalar_one()
        allowance_tokens = min(allowance_tokens, hold.price.affordable(free_nano, hold.prompt_tokens))
        if allowance_tokens >= min(OUTPUT_TOKENS_MIN, hold.allowance_tokens):
            left_nano = _take(connection, hold, allowance_tokens)
        if left_nano is None:
            if hold.idempotency_digest:
                connection.execute(FORGET_KEY, {"account": hold.account_id, "key": hold.idempotency_digest})
            least_tokens = min(OUTPUT_TOKENS_MIN, hold.allowance_tokens)
            return Insufficient(free_nano, hold.price.quote(hold.prompt_tokens, least_tokens))
    _add_hold(connection, hold, allowance_tokens, owner)
    return Held(allowance_tokens, left_nano)


def end_hold(connection: Connection, end: End) -> Ended:
    """Settle or release. The second end of a hold does nothing and says so."""
    state: Literal["settled", "released"] = "settled" if end.usage else "released"
    ended = connection.execute(
        END_HOLD, {"request": end.request_id, "new_state": state, "at": end.ended_at}
    ).one_or_none()
    if ended is None:
        return Ended(is_first=False)
    due_nano = charged_nano = 0
    if end.usage:
        price = Price(ended.input_nano, ended.output_nano, ended.cached_input_nano)
        due_nano = price.charge(end.usage)
        charged_nano = _pay(connection, ended.account_id, ended.amount_nano, due_nano)
        _add_entry(connection, ended.account_id, "charge", -charged_nano, end.ended_at, request_id=end.request_id)
    else:
        connection.execute(GIVE_BACK, {"account": ended.account_id, "amount": ended.amount_nano})
    counted = end.usage or Usage(0, 0)
    connection.execute(
        ADD_USAGE,
        {
            "request_id": end.request_id,
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
        },
    )
    return Ended(is_first=True, charged_nano=charged_nano, short_nano=due_nano - charged_nano)


def mark_delivered(connection: Connection, delivered: dict[str, int]) -> None:
    """How many tokens each open request has delivered so far: what a crash would leave to be charged."""
    marks = [{"request": request_id, "tokens": tokens} for request_id, tokens in sorted(delivered.items())]
    if marks:
        connection.execute(MARK, marks)


def owners_with_open_holds(connection: Connection) -> list[str]:
    return list(connection.execute(OPEN_OWNERS).scalars())


def end_holds_of(connection: Connection, owner: str, now_ms: int) -> int:
    """End what a dead process left open: settled by its mark where something was delivered, released otherwise."""
    left_open = connection.execute(OPEN_OF, {"of": owner}).all()
    for hold in left_open:
        delivered = Usage(hold.prompt_tokens, hold.delivered_tokens, estimated=True) if hold.delivered_tokens else None
        duration_ms = max(0, now_ms - hold.started_at)
        end = End(hold.request_id, hold.account_id, delivered, "", "", INTERRUPTED_STATUS, None, duration_ms, now_ms)
        end_hold(connection, end)
    return len(left_open)


def forget_old_keys(connection: Connection, now_ms: int) -> None:
    connection.execute(FORGET_OLD_KEYS, {"before": now_ms - IDEMPOTENCY_MS})


def _take(connection: Connection, hold: Hold, allowance_tokens: int) -> int | None:
    """The check and the move in one statement: what is left, or None where there is not enough."""
    amount_nano = hold.price.quote(hold.prompt_tokens, allowance_tokens)
    left: int | None = connection.execute(
        TAKE, {"account": hold.account_id, "amount": amount_nano}
    ).scalar_one_or_none()
    return left


def _pay(connection: Connection, account_id: str, held_nano: int, due_nano: int) -> int:
    """What was due, or, where it is more than the hold and all that is free, as much as there is."""
    values = {"account": account_id, "amount": held_nano, "charge": due_nano}
    if connection.execute(PAY, values).rowcount == 1:
        return due_nano
    free_nano: int = connection.execute(READ_FREE, {"account": account_id}).scalar_one()
    charge_nano = min(due_nano, held_nano + free_nano)  # the account is locked by now, and may have more than before
    paid = connection.execute(PAY, values | {"charge": charge_nano}).rowcount
    assert paid == 1
    return charge_nano


def _add_hold(connection: Connection, hold: Hold, allowance_tokens: int, owner: str) -> None:
    connection.execute(
        ADD_HOLD,
        {
            "request_id": hold.request_id,
            "account_id": hold.account_id,
            "key_id": hold.key_id,
            "class_id": hold.class_id,
            "owner": owner,
            "state": "open",
            "amount_nano": hold.price.quote(hold.prompt_tokens, allowance_tokens),
            "prompt_tokens": hold.prompt_tokens,
            "delivered_tokens": 0,
            "input_nano": hold.price.input_nano,
            "output_nano": hold.price.output_nano,
            "cached_input_nano": hold.price.cached_input_nano,
            "stream": hold.stream,
            "started_at": hold.started_at,
        },
    )


def _add_entry(connection: Connection, account_id: str, kind: str, amount_nano: int, now_ms: int, **more: str) -> None:
    values = {"account_id": account_id, "kind": kind, "amount_nano": amount_nano, "created_at": now_ms}
    connection.execute(ADD_ENTRY, {"note": "", "request_id": None} | values | more)


def _see_key(connection: Connection, hold: Hold, digest: bytes) -> Repeated | None:
    """Note the key, unless it was seen within a day by a request that is running or was charged.

    The account is locked first, so that of two requests with one key the second sees what the first did.
    """
    connection.execute(READ_FREE, {"account": hold.account_id})
    values = {
        "account": hold.account_id,
        "digest": digest,
        "request": hold.request_id,
        "shown": hold.shown_id,
        "at": hold.started_at,
    }
    if connection.execute(SEE_KEY, values).rowcount == 1:
        return None
    seen = connection.execute(SEEN_KEY, {"account": hold.account_id, "key": digest}).one()
    if seen.state != "released" and seen.created_at > hold.started_at - IDEMPOTENCY_MS:
        return Repeated(seen.request_id, seen.shown_id)
    connection.execute(FORGET_KEY, {"account": hold.account_id, "key": digest})
    connection.execute(SEE_KEY, values)
    return None
