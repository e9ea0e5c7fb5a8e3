"""Random histories of the project's own statements on the ledger's tables, with values from small sets.

Several sessions run them one statement at a time. The values are so few that sessions meet at the same rows and keys,
and that constraints are broken now and then.
"""

import functools
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import msgspec
from sqlalchemy import bindparam, update

from cadenza.fleet import changes, presence
from cadenza.ledger import (
    cap_rows,
    credit,
    day_sums,
    lots,
    low_balances,
    marks,
    payments,
    rows,
    statement,
    sweeps,
    transaction,
    vouchers,
)
from cadenza.ledger.committer import REGISTERED
from cadenza.store import schema
from cadenza.store.postgres.session import DIALECT
from cadenza.store.statements import SelectByIds, Statement, compile_for
from cadenza.store.store import CHANGE_NOTHING
from cadenza.store.tables import accounts, audit_events, epochs, keys
from cadenza.store.tables.metered import KEY, SUMS

Pick = Callable[[Random], Any]
Chosen = tuple[Statement, Mapping[str, Any]]

ACCOUNTS = ("acct_a", "acct_b", "acct_c")
KEYS = {"acct_a": "key_a", "acct_b": "key_b", "acct_c": "key_c"}
PROCESSES = ("proc_1", "proc_2", "proc_3")
COMPLETIONS = tuple(f"chatcmpl-{number}" for number in range(5))
DIGESTS = tuple(bytes([number]) * 32 for number in range(1, 4))
SOURCES = ("voucher:1", "refund:1", "late-end:1")
AMOUNTS = (0, 10, 20, 30)
EMAILS = ("a@example.com", "b@example.com", "d@example.com", "e@example.com", "D@example.com")


def one_of(*among: Any) -> Pick:
    return lambda random: random.choice(among)


def some_of(*among: Any) -> Pick:
    """A part of these, in any order."""
    return lambda random: random.sample(among, random.randint(0, len(among)))


ANY_ACCOUNT = one_of(*ACCOUNTS * 5, "acct_unknown")
ANY_KEY = one_of(*KEYS.values())
ANY_PROCESS = one_of(*PROCESSES * 5, "proc_unknown")
AMOUNT = one_of(*AMOUNTS)
TIME = one_of(1, 2, 3, 1000)
DEFAULTS: dict[str, Pick] = {
    **dict.fromkeys(("account", "account_id"), ANY_ACCOUNT),
    **dict.fromkeys(("key", "key_id"), ANY_KEY),
    **dict.fromkeys(("process", "of", "me", "name"), ANY_PROCESS),
    **dict.fromkeys(("completion", "completion_id", "id"), one_of(*COMPLETIONS)),
    **dict.fromkeys(("created_at", "started_at", "at", "now", "used", "before", "after", "since", "created"), TIME),
    **dict.fromkeys(("digest", "code", "arguments_digest"), one_of(*DIGESTS)),
    **dict.fromkeys(("amount", "amount_nano", "left_nano", "cost_nano", "paid", "spent", "excused"), AMOUNT),
    **dict.fromkeys(("limit_nano", "spent_nano", "excused_nano", "input_nano", "output_nano", "short_nano"), AMOUNT),
    **dict.fromkeys(
        ("note", "request_id", "version", "revision", "host", "subject", "detail", "actor"), one_of("x", "y")
    ),
    **dict.fromkeys(("provider", "model", "class_id", "event", "action"), one_of("x", "y")),
    **dict.fromkeys(("prompt_tokens", "duration_ms", "burst", "pid", "number"), one_of(1, 2)),
    **dict.fromkeys(("cached_input_nano", "first_byte_ms", "held_nano", "provider_cost_nano"), one_of(None, 1)),
    **dict.fromkeys(("estimated", "stream", "spare", "has_spare"), one_of(True, False)),
    "cached_tokens": one_of(0, 1, 2),
    "completion_tokens": one_of(0, 5),
    "delivered_tokens": one_of(0, 1, 2, 3),
    "status": one_of(200, 500),
    "source": one_of(*SOURCES),
    "idempotency_digest": one_of(None, *DIGESTS),
    "ids": some_of(*ACCOUNTS),
    "digests": some_of(*DIGESTS),
    "count": one_of(1, 2, 20),
    "first": one_of(0, 2),
    "next": one_of(2, 2000),
    "month": one_of(0, 202611),
    "new_month": one_of(0, 202611),
    "period": one_of("total", "month"),
    "debt_id": one_of(None, 1, 2),
    "debt": one_of(1, 2),
    "granted": one_of(0, 10),
    "granted_nano": one_of(None, -10, 0, 10),
    "origin": one_of(None, "grant", "debt"),
    "token": one_of(None, "x"),
}
IN_COMPLETIONS: dict[str, Pick] = {"id": one_of(*COMPLETIONS), "ids": some_of(*COMPLETIONS)}
IN_KEYS: dict[str, Pick] = {"id": ANY_KEY, "ids": some_of(*KEYS.values())}
IN_ACCOUNTS: dict[str, Pick] = {"id": ANY_ACCOUNT}
BY_DIGEST: dict[str, Pick] = {"key": one_of(*DIGESTS)}
ENTRY: dict[str, Pick] = {
    "kind": one_of("grant", "charge", "charge", "correction"),
    "amount_nano": one_of(-20, -10, 0, 10),
    "completion_id": one_of(None, *COMPLETIONS),
}
RESERVE: dict[str, Pick] = {"before": one_of(10, 20), "after": one_of(0, 10, 20)}
OF_PAYMENT: dict[str, Pick] = {
    "of": one_of("stripe"),
    "payment": one_of("pay_1", "pay_2"),
    "session": one_of("", "checkout_1"),
    "intent": one_of("", "intent_1"),
}
RETURNED: dict[str, Pick] = dict.fromkeys(("returned", "refunded", "lost", "disputed"), AMOUNT)
USAGE: dict[str, Pick] = {
    "version": one_of(None, 1),
    "source": one_of("request", "sweep"),
    "account_id": one_of(*ACCOUNTS),
}
DAY: dict[str, Pick] = {"day": one_of(1, 2), **dict.fromkeys(SUMS, one_of(0, 1, 5))}
EPOCH: dict[str, Pick] = {"of": one_of("changes", "classes")}
SPAN: dict[str, Pick] = {"start": one_of(0, 2), "end": one_of(2, 5000)}
BATCHES, LOCKING, CHANGING = 0.15, 0.35, 0.85  # how often each kind is chosen


@functools.cache
def names_of(statement_: Statement) -> list[str]:
    """The values that a statement needs."""
    compiled = compile_for(DIALECT, statement_.postgres_core, statement_.columns)
    return [name for name in compiled.positiontup or () if compiled.binds[name].required]


def picked(random: Random, statement_: Statement, picks: Mapping[str, Pick]) -> dict[str, Any]:
    return {name: (picks.get(name) or DEFAULTS[name])(random) for name in names_of(statement_)}


def batch(random: Random) -> dict[str, Any]:
    """The arrays of a batch: some rows of each kind."""
    own: dict[str, Mapping[str, Pick]] = {
        "e": ENTRY,
        "u": USAGE,
        "s": DAY,
        "a": {
            "account": one_of(*ACCOUNTS),
            "paid": one_of(-20, 0, 10),
            "more": one_of(-10, 0, 10),
            "granted": one_of(-20, 0, 10),
        },
        "r": RESERVE,
        "d": RESERVE,
    }
    counts = {prefix: random.choice((0, 1, 1, 2)) for prefix in own}
    values: dict[str, Any] = {"process": ANY_PROCESS(random)}
    for name in names_of(rows.WRITE):
        if name != "process":
            prefix, _, column = name.partition("_")
            pick = own[prefix].get(column) or DEFAULTS[column]
            values[name] = [pick(random) for _ in range(counts[prefix])]
    for name in ("a_account", "r_account", "d_account"):  # each once, as in the ledger
        values[name] = random.sample(ACCOUNTS, len(values[name]))
    return values


RENAME = Statement(
    update(schema.accounts).where(schema.accounts.c.id == bindparam("account")).values(email=bindparam("new_email"))
)
CHANGES: list[tuple[Statement, Mapping[str, Pick]]] = [
    (RENAME, {"new_email": one_of(*EMAILS)}),
    (RENAME, {"new_email": one_of(*EMAILS)}),
    (
        accounts.INSERT,
        {
            "id": one_of("acct_a", "acct_new"),
            "email": one_of(*EMAILS),
            "balance_nano": one_of(0, 10),
            "held_nano": one_of(0, 10, 20),
            "preferred_class": one_of("forte", "piano"),
            **dict.fromkeys(("password_hash", "theme"), one_of("x")),
            **dict.fromkeys(("is_operator", "uses_search", "uses_memory", "shows_cost"), one_of(True, False)),
            **dict.fromkeys(("suspended_at", "erased_at", "verified_at", "low_noticed_at"), one_of(None, 1)),
            **dict.fromkeys(("low_balance_nano", "debt_nano", "granted_nano"), AMOUNT),
        },
    ),
    (rows.ADD_ENTRY, ENTRY),
    (rows.ADD_SOURCED_ENTRY, ENTRY),
    (rows.ADD_USAGE, USAGE),
    (rows.CORRECT_USAGE, {f"new_{name}": pick for name, pick in {**DEFAULTS, **USAGE}.items()}),
    (day_sums.ADD, DAY),
    (
        day_sums.SUBTRACT,
        {f"of_{name}": DAY.get(name) or DEFAULTS[name] for name in KEY} | {f"less_{name}": DAY[name] for name in SUMS},
    ),
    (rows.ADD_RESERVE, {}),
    (rows.CHANGE_RESERVE, RESERVE),
    (rows.DROP_RESERVE, RESERVE),
    (rows.MOVE, {"paid": one_of(-20, 0, 10), "more": one_of(-10, 0, 10), "granted": one_of(-20, 0, 10)}),
    (cap_rows.WRITE, {}),
    (cap_rows.WRITE_HOLD, {}),
    (cap_rows.DROP_HOLD, {}),
    (cap_rows.ADD, {}),
    (cap_rows.REMOVE, {}),
    (cap_rows.REMOVE_HOLDS, {}),
    (cap_rows.FLAG_ACCOUNT, {}),
    (marks.MARK, {"version": one_of(1)}),
    (transaction.UNMARK, {}),
    (sweeps.KEEP_KEY, BY_DIGEST),
    (sweeps.FREE_KEY, BY_DIGEST),
    (transaction.ADD_KEY, {}),
    (transaction.FORGET_KEY, BY_DIGEST),
    (transaction.FREE_KEY, BY_DIGEST),
    (transaction.KEEP_KEY, BY_DIGEST),
    (credit.GRANT, {"most": one_of(50, 1000)}),
    (credit.TAKE, {}),
    (credit.LOCK, {}),
    (credit.ASK, {}),
    (credit.ADD_DEBT, {}),
    (credit.LOWER_DEBT, {}),
    (credit.CANCEL_DEBT, {}),
    (credit.ADD_DEBT_ENTRY, ENTRY),
    (credit.OWE, {}),
    (credit.PAY, {}),
    (credit.ADD_REFERENCE, {}),
    (lots.ADD, {"expires_at": one_of(None, 2)}),
    (lots.CHANGE, {"lot": one_of(1, 2), "left": AMOUNT, "ended": one_of(None, 3)}),
    (low_balances.CLAIM, {}),
    (low_balances.CLEAR, {}),
    (low_balances.NOTICE_BELOW, {"below": one_of(5, 500)}),
    (vouchers.REDEEM, {}),
    (vouchers.REVOKE, {"voucher": one_of("voucher_1", "voucher_2")}),
    (
        vouchers.INSERT,
        {
            "id": one_of("voucher_1", "voucher_2", "voucher_3"),
            "prefix": one_of("x"),
            "expires_at": one_of(None, 2),
            "redeemed_at": one_of(None),
            "redeemed_by": one_of(None),
            "credit_days": one_of(None, 1),
        },
    ),
    (payments.LOCK, OF_PAYMENT),
    (
        payments.CHANGE,
        {**OF_PAYMENT, **RETURNED, "intent": one_of(None, "intent_1"), "now_is": one_of("open", "paid")},
    ),
    (payments.ADD_EVENT, {"event": one_of("event_1", "event_2"), "kind": one_of("x")}),
    (
        payments.INSERT,
        {
            "id": one_of("pay_1", "pay_2"),
            "provider": one_of("stripe"),
            "checkout": one_of("checkout_1", "checkout_2"),
            "reference": one_of(None, "intent_1"),
            **{f"{name}_nano": one_of(0, 10) for name in RETURNED},
            "state": one_of("open", "lost"),
            "changed_at": TIME,
        },
    ),
    (presence.REGISTER, {}),
    (presence.HEARTBEAT, {}),
    (presence.SET_SEEN, {}),
    (presence.FENCE, {"fenced": one_of(-1), "last": one_of(0, 1)}),
    (presence.REMOVE, {}),
    (epochs.INCREMENT, EPOCH),
    (keys.REVOKE, {}),
    (keys.TOUCH, {}),
    (
        keys.INSERT,
        {
            "id": one_of("key_a", "key_new"),
            "prefix": one_of("x" * 12, "short"),
            "scopes": one_of(""),
            "expires_at": one_of(None, 2),
            "requests_per_second": one_of(None, 0.5),
            "origin": one_of("owner", "web"),
        },
    ),
    (audit_events.INSERT, {"account_id": one_of(None, *ACCOUNTS)}),
    (CHANGE_NOTHING, {}),
]
LOCKS: list[tuple[Statement, Mapping[str, Pick]]] = [
    (transaction.LOCK_ACCOUNTS.one, IN_ACCOUNTS),
    (transaction.LOCK_ACCOUNTS.many, IN_ACCOUNTS),
    (transaction.LOCK_FREE_ACCOUNTS.one, IN_ACCOUNTS),
    (transaction.LOCK_FREE_ACCOUNTS.many, IN_ACCOUNTS),
    (accounts.LOCK, {}),
    (accounts.LOCK_PASSWORD, {}),
    (accounts.OPERATORS, {}),
    (epochs.LOCK, EPOCH),
]
READS: list[tuple[Statement, Mapping[str, Pick]]] = [
    (cap_rows.READ.one, IN_KEYS),
    (cap_rows.READ.many, IN_KEYS),
    (cap_rows.SPENT, {"start_day": one_of(0, 2), "end_day": one_of(2, 5000)}),
    (cap_rows.HELD, {}),
    (cap_rows.HELD_BY_PROCESS, {}),
    (cap_rows.HOLDS_OF_PROCESS, {}),
    (sweeps.LEFT_MARKS, {}),
    (sweeps.LEFT_KEYS, {}),
    (sweeps.MARKED.one, IN_COMPLETIONS),
    (sweeps.MARKED.many, IN_COMPLETIONS),
    (transaction.ASKED, {}),
    (transaction.RESERVED, {}),
    (transaction.ENDED.one, IN_COMPLETIONS),
    (transaction.ENDED.many, IN_COMPLETIONS),
    (transaction.REVOKED, {}),
    (transaction.READ_KEY, BY_DIGEST),
    (transaction.OLD_KEYS, {"count": one_of(1, 2)}),
    (credit.FREE, {}),
    (credit.FIND_SOURCE, {}),
    (credit.SPARE, {}),
    (credit.OPEN_DEBTS, {}),
    (credit.FIND_DEBT, {}),
    (credit.GRANTED_OF_DEBT, {}),
    (lots.OPEN, {}),
    (lots.DUE, {}),
    (credit.FIND_REFERENCE, {}),
    (low_balances.FIND, {}),
    (statement.REPLY_COST, {}),
    (vouchers.BY_DIGEST, {}),
    (vouchers.BY_ID_OR_PREFIX, {"text": one_of("x", "voucher_1")}),
    (vouchers.LIST, {}),
    (payments.READ, OF_PAYMENT),
    (payments.LIST, {}),
    (payments.COUNT_OPEN, {}),
    (REGISTERED, {}),
    (presence.READ_HEARTBEATS, {}),
    (presence.NAMES, {}),
    (changes.BEHIND, {}),
    (keys.BY["digest"], {"value": one_of(*DIGESTS), "count": one_of(1, 9)}),
    (keys.BY["prefix"], {"value": one_of("x" * 12, "y" * 12), "count": one_of(1, 9)}),
    (keys.BY["account_id"], {"value": one_of(*ACCOUNTS), "count": one_of(1, 9)}),
    (keys.BY["id"], {"value": ANY_KEY, "count": one_of(1, 9)}),
    (keys.PAGE, {}),
    (keys.ACTIVE_PAGE, {}),
    (keys.COUNT_ACTIVE, {}),
    (keys.COUNT_NEW, {}),
    (keys.WEB_DIGEST, {}),
    (keys.LOOK_UP, {}),
    (keys.LOOK_UP_MANY, {}),
    (accounts.BY_ID, {}),
    (accounts.BY_EMAIL, {"email": one_of(*EMAILS)}),
    (accounts.OLDEST_FIRST, {}),
    (epochs.CURRENT, EPOCH),
    (audit_events.LIST, {"before": one_of(2, 100)}),
    (audit_events.LIST_OF_ACCOUNT, {"before": one_of(2, 100)}),
]
_LEDGER = (
    rows,
    cap_rows,
    day_sums,
    marks,
    sweeps,
    transaction,
    credit,
    lots,
    low_balances,
    statement,
    vouchers,
    payments,
    presence,
)
MODULES = (*_LEDGER, changes, accounts, audit_events, epochs, keys)
NAMES: dict[Statement, str] = {one: f"store.tables.keys.BY[{name!r}]" for name, one in keys.BY.items()}  # for messages
for _module in MODULES:
    for _name, _found in vars(_module).items():
        if isinstance(_found, Statement):
            NAMES.setdefault(_found, f"{_module.__name__.removeprefix('cadenza.')}.{_name}")
        elif isinstance(_found, SelectByIds):
            NAMES |= {_found.one: f"{_name}.one", _found.many: f"{_name}.many"}


def choose(random: Random, *, only_reads: bool = False) -> Chosen:
    """A statement with its values. Statements that meet others at locks come more often."""
    kind = random.random()
    if only_reads:
        statement_, picks = random.choice(READS)
    elif kind < BATCHES:
        return rows.WRITE, batch(random)
    elif kind < LOCKING:
        statement_, picks = random.choice(LOCKS)
    else:
        statement_, picks = random.choice(CHANGES if kind < CHANGING else READS)
    return statement_, picked(random, statement_, picks)


def choose_for_sqlite(random: Random, *, only_reads: bool = False) -> Chosen:
    while True:
        statement_, values = choose(random, only_reads=only_reads)
        if "= any(" not in statement_.sqlite_text and statement_ is not rows.WRITE:
            return statement_, values


def first_rows() -> list[Chosen]:
    """What is there when a history begins."""
    found: list[Chosen] = []
    for place, account_id in enumerate(ACCOUNTS):
        account = accounts.Account(account_id, f"{account_id[-1]}@example.com", "forte", 50, 20, 1, place == 1)
        found.append((accounts.INSERT, {**msgspec.structs.asdict(account), "password_hash": "x"}))
        key = keys.NewKey(KEYS[account_id], account_id, "x", "x" * 12, frozenset(), 1, None)
        found.append((keys.INSERT, {**msgspec.structs.asdict(key), "scopes": "", "digest": DIGESTS[place]}))
    program = {"version": "1", "revision": "1", "host": "x", "pid": 1}
    found += [(presence.REGISTER, {"name": name, **program}) for name in PROCESSES[:2]]
    reserves = [("acct_a", "proc_1", 20, False), ("acct_a", "proc_2", 10, True), ("acct_b", "proc_1", 20, False)]
    found += [(rows.ADD_RESERVE, dict(zip(rows.RESERVE_COLUMNS, one, strict=True))) for one in reserves]
    money = {"limit_nano": 30, "month": 0, "spent_nano": 10, "excused_nano": 0}
    found.append((cap_rows.ADD, {"key_id": "key_a", "account_id": "acct_a", "period": "total", **money}))
    return found
