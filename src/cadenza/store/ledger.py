"""The ledger: append-only entries, the balance of each account that caches their sum, and holds on it.

Invariants, each kept by every transaction and checked on the live store by `store/audit.py`:
- an account's balance is the sum of its entries, its held sum the sum of its open holds; only this file changes them;
- each conditional UPDATE checks and changes in one statement, so the held sum never exceeds the balance;
- a hold ends once (open -> settled | released), and a request is charged at most once, at the prices of its hold.
"""

from typing import Any, NamedTuple

import msgspec
from sqlalchemy import ColumnElement, bindparam, delete, insert, literal_column, select, text, update

from cadenza.core.money import Price
from cadenza.core.records import Outcome, Usage
from cadenza.core.tokens import OUTPUT_TOKENS_MIN
from cadenza.store.schema import accounts, entries, holds, idempotency, usage
from cadenza.store.statements import Statement
from cadenza.store.store import Transaction

BALANCE_NANO_LIMIT = 2**62
IDEMPOTENCY_MS = 24 * 60 * 60 * 1000
INTERRUPTED_STATUS = 500
ENDPOINT = "chat"  # the one endpoint whose requests hold credit
NOTHING = Usage(0, 0)
UNCOUNTED_TIMES = 256  # an uncounted prompt needs this many times its amount in free credit


class Hold(msgspec.Struct, frozen=True):
    """The credit that a request asks for before it is served, at a snapshot of the price.

    An uncounted prompt is held at an upper bound of its tokens, and only for accounts with far more credit than that.
    """

    completion_id: str
    account_id: str
    key_id: str
    class_id: str
    prompt_tokens: int
    allowance_tokens: int
    price: Price
    stream: bool
    started_at: int
    is_counted: bool = True  # False: `prompt_tokens` is an upper bound
    request_id: str = ""
    idempotency_digest: bytes | None = None

    def least_nano(self, amount_nano: int) -> int:
        """Return the free credit that an account needs for this hold."""
        return amount_nano if self.is_counted else amount_nano * UNCOUNTED_TIMES


class Held(msgspec.Struct, frozen=True):
    """The hold was taken: the output that it pays for, and the free credit that is left."""

    allowance_tokens: int
    left_nano: int


class Insufficient(msgspec.Struct, frozen=True):
    """The free credit does not pay for the request."""

    free_nano: int
    needed_nano: int


class Repeated(msgspec.Struct, frozen=True):
    """The idempotency key was used before, by this request."""

    completion_id: str
    request_id: str


class Ended(msgspec.Struct, frozen=True):
    """The result of ending a hold."""

    is_first: bool  # False: it had ended before, and nothing was changed
    charged_nano: int = 0
    short_nano: int = 0  # due, but the account could not pay it


class OpenHold(NamedTuple):
    """Everything that is needed to end a hold. The fields are columns of `holds`."""

    completion_id: str
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
        """Return a hold as it is right after it was taken."""
        price = hold.price
        return cls(
            hold.completion_id,
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
        """Return what is due for this usage, at the prices of the hold."""
        return Price(self.input_nano, self.output_nano, self.cached_input_nano).charge(counted)


OPEN: ColumnElement[str] = literal_column("'open'")  # a literal, so that the index of open holds can be used
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
    .where(holds.c.completion_id == bindparam("completion"), holds.c.state == OPEN)
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
MOVE = Statement(  # all holds and ends of one account in a batch
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
        holds.c.completion_id == bindparam("completion"),
        holds.c.state == OPEN,
        holds.c.delivered_tokens < bindparam("tokens"),
    )
    .values(delivered_tokens=bindparam("tokens"), prompt_tokens=bindparam("prompt"))
)
ADD_ENTRY = Statement(insert(entries), "account_id", "kind", "amount_nano", "completion_id", "note", "created_at")
ADD_USAGE = Statement(insert(usage), *usage.c.keys())
ADD_KEY = Statement(
    text(
        "INSERT INTO idempotency (account_id, digest, completion_id, request_id, created_at)"
        " VALUES (:account, :digest, :completion, :request, :at) ON CONFLICT DO NOTHING"
    )
)
READ_KEY = Statement(
    select(idempotency.c.completion_id, idempotency.c.request_id, idempotency.c.created_at, holds.c.state)
    .join_from(idempotency, holds, idempotency.c.completion_id == holds.c.completion_id, isouter=True)
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


def grant(tx: Transaction, account_id: str, amount_nano: int, note: str, now_ms: int) -> int:
    """Add credit and return the new balance."""
    assert 0 < amount_nano < BALANCE_NANO_LIMIT, "a grant is above zero and below the limit"
    values = {"account": account_id, "amount": amount_nano, "most": BALANCE_NANO_LIMIT - amount_nano}
    moved = tx.row(GRANT, values)
    if moved is None:  # not `assert`: `python -O` would append the entry without its balance
        raise AssertionError("no such account, or a balance above its limit")
    tx.change(
        ADD_ENTRY,
        {
            "account_id": account_id,
            "kind": "grant",
            "amount_nano": amount_nano,
            "completion_id": None,
            "note": note,
            "created_at": now_ms,
        },
    )
    return int(moved[0])


def take_hold(tx: Transaction, hold: Hold, owner: str) -> Held | Insufficient | Repeated:
    """Hold the whole allowance, or as much of it as the account can pay for."""
    if hold.idempotency_digest and (repeated := _claim_key(tx, hold, hold.idempotency_digest)):
        return repeated
    allowance_tokens = hold.allowance_tokens
    left_nano = _take(tx, hold, allowance_tokens)
    if left_nano is None:
        free_nano = _free_nano(tx, hold.account_id)
        allowance_tokens = min(allowance_tokens, hold.price.affordable(free_nano, hold.prompt_tokens))
        if hold.is_counted and allowance_tokens >= min(OUTPUT_TOKENS_MIN, hold.allowance_tokens):
            left_nano = _take(tx, hold, allowance_tokens)
        if left_nano is None:
            if hold.idempotency_digest:
                tx.change(FORGET_KEY, {"account": hold.account_id, "key": hold.idempotency_digest})
            least_tokens = min(OUTPUT_TOKENS_MIN, hold.allowance_tokens)
            return Insufficient(free_nano, hold.price.quote(hold.prompt_tokens, least_tokens))
    tx.change(ADD_HOLD, hold_row(OpenHold.of(hold, allowance_tokens), owner))
    return Held(allowance_tokens, left_nano)


def end_hold(tx: Transaction, outcome: Outcome) -> Ended:
    """Settle or release a hold. Ending it a second time changes nothing."""
    row = tx.row(END_HOLD, ending(outcome))
    return Ended(is_first=False) if row is None else settle(tx, OpenHold._make(row), outcome)


def settle(tx: Transaction, hold: OpenHold, outcome: Outcome) -> Ended:
    """Charge the account, or give back its credit, for a hold that has just been marked as ended."""
    due_nano = charged_nano = 0
    if outcome.usage:
        due_nano = hold.charge(outcome.usage)
        charged_nano = _pay(tx, hold.account_id, hold.amount_nano, due_nano)
        tx.change(ADD_ENTRY, charge_row(hold, outcome, charged_nano))
    else:
        tx.change(GIVE_BACK, {"account": hold.account_id, "amount": hold.amount_nano})
    tx.change(ADD_USAGE, usage_row(hold, outcome, charged_nano))
    return Ended(is_first=True, charged_nano=charged_nano, short_nano=due_nano - charged_nano)


def mark_delivered(tx: Transaction, delivered: dict[str, Usage]) -> None:
    """Write what open requests have delivered so far, by completion id. After a crash, this is what is charged."""
    marks = [
        {"completion": completion_id, "prompt": counted.prompt_tokens, "tokens": counted.completion_tokens}
        for completion_id, counted in sorted(delivered.items())
    ]
    if marks:
        tx.change_each(MARK, marks)


def owners_with_open_holds(tx: Transaction) -> list[str]:
    return [owner for (owner,) in tx.rows(OPEN_OWNERS, {})]


def end_holds_of(tx: Transaction, owner: str, now_ms: int) -> list[Outcome]:
    """End the holds that a dead process left open: charge what was marked as delivered, and release the others."""
    outcomes = [_interrupted(OpenHold._make(row), now_ms) for row in tx.rows(OPEN_OF, {"of": owner})]
    return [outcome for outcome in outcomes if end_hold(tx, outcome).is_first]


def forget_old_keys(tx: Transaction, now_ms: int) -> None:
    tx.change(FORGET_OLD_KEYS, {"before": now_ms - IDEMPOTENCY_MS})


def _take(tx: Transaction, hold: Hold, allowance_tokens: int) -> int | None:
    """Check and hold in one statement. Return the free credit that is left, or None where there is not enough."""
    amount_nano = hold.price.quote(hold.prompt_tokens, allowance_tokens)
    least_nano = hold.least_nano(amount_nano)
    left = tx.row(TAKE, {"account": hold.account_id, "amount": amount_nano, "least": least_nano})
    return None if left is None else int(left[0])


def _free_nano(tx: Transaction, account_id: str) -> int:
    """Lock the account and return its free credit."""
    row = tx.row(READ_FREE, {"account": account_id})
    assert row
    return int(row[0])


def _pay(tx: Transaction, account_id: str, held_nano: int, due_nano: int) -> int:
    """Charge what is due, at most the hold and all free credit, and return the charge."""
    values = {"account": account_id, "amount": held_nano, "charge": due_nano}
    if tx.change(PAY, values) == 1:
        return due_nano
    free_nano = _free_nano(tx, account_id)
    charge_nano = min(due_nano, held_nano + free_nano)  # now that the account is locked, it may have more than before
    paid = tx.change(PAY, values | {"charge": charge_nano})
    assert paid == 1
    return charge_nano


def ending(outcome: Outcome) -> dict[str, Any]:
    new_state = "settled" if outcome.usage else "released"
    return {"completion": outcome.completion_id, "new_state": new_state, "at": outcome.ended_at}


def hold_row(hold: OpenHold, owner: str) -> dict[str, Any]:
    return {**hold._asdict(), "owner": owner, "state": "open"}


def charge_row(hold: OpenHold, outcome: Outcome, charged_nano: int) -> dict[str, Any]:
    return {
        "account_id": hold.account_id,
        "kind": "charge",
        "amount_nano": -charged_nano,
        "completion_id": hold.completion_id,
        "note": "",
        "created_at": outcome.ended_at,
    }


def usage_row(hold: OpenHold, outcome: Outcome, charged_nano: int) -> dict[str, Any]:
    counted = outcome.usage or NOTHING
    return {
        "completion_id": hold.completion_id,
        "request_id": hold.request_id,
        "account_id": hold.account_id,
        "key_id": hold.key_id,
        "class_id": hold.class_id,
        "provider": outcome.provider,
        "model": outcome.model,
        "prompt_tokens": counted.prompt_tokens,
        "cached_tokens": counted.cached_tokens,
        "completion_tokens": counted.completion_tokens,
        "cost_nano": charged_nano,
        "estimated": counted.estimated,
        "status": outcome.status,
        "stream": hold.stream,
        "started_at": hold.started_at,
        "first_byte_ms": outcome.first_byte_ms,
        "duration_ms": outcome.duration_ms,
    }


def _interrupted(hold: OpenHold, now_ms: int) -> Outcome:
    """Build the outcome of a request whose process died, from the last mark of what it delivered."""
    usage = Usage(hold.prompt_tokens, hold.delivered_tokens, estimated=True) if hold.delivered_tokens else None
    return Outcome(
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


def _claim_key(tx: Transaction, hold: Hold, digest: bytes) -> Repeated | None:
    """Store the idempotency key, unless a request of the last 24 hours that runs or was charged has used it.

    The account is locked first, so that the second of two requests with one key sees what the first did.
    """
    _free_nano(tx, hold.account_id)
    values = {
        "account": hold.account_id,
        "digest": digest,
        "completion": hold.completion_id,
        "request": hold.request_id,
        "at": hold.started_at,
    }
    if tx.change(ADD_KEY, values) == 1:
        return None
    found = tx.row(READ_KEY, {"account": hold.account_id, "key": digest})
    assert found
    completion_id, request_id, created_at, state = found
    if state != "released" and created_at > hold.started_at - IDEMPOTENCY_MS:
        return Repeated(completion_id, request_id)
    tx.change(FORGET_KEY, {"account": hold.account_id, "key": digest})
    tx.change(ADD_KEY, values)
    return None
