"""What the owner of an account sees of its money: its entries, and the cost of a reply of the web chat.

The entries of an account are numbered in the order in which they changed its balance, because each is written under the
lock of the account. So the balance after an entry never changes, and a page can continue from the one before it.
"""

from collections.abc import AsyncIterator

import msgspec
from sqlalchemy import Select, Text, and_, bindparam, literal_column, select, text

from cadenza.core.spans import ALWAYS, Span
from cadenza.ledger.origins import Origin
from cadenza.store.schema import accounts, debts, entries, usage
from cadenza.store.statements import Statement
from cadenza.store.store import Store

EXPORT_ROWS = 100  # to decode them takes a driver less than a millisecond


class Entry(msgspec.Struct, frozen=True):
    """One entry. That of a request has all that its charge can be recomputed from."""

    id: int
    created_at: int
    kind: str
    amount_nano: int
    note: str
    source: str | None
    completion_id: str | None
    granted_nano: int
    origin: Origin | None
    refunded_nano: int | None  # of a charge
    owed_nano: int | None  # the debt that it left, as far as that was not cancelled
    request_id: str | None
    key_id: str | None
    class_id: str | None
    version: int | None
    provider: str | None
    model: str | None
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    input_nano: int | None
    output_nano: int | None
    cached_input_nano: int | None
    balance_nano: int = 0  # after it


_FIELDS = Entry.__struct_fields__
_ENTRY = [entries.c[name] for name in _FIELDS[: _FIELDS.index("refunded_nano")]]
_REQUEST = [usage.c[name] for name in _FIELDS[_FIELDS.index("request_id") : -1]]
_refund = entries.alias("refund")
_IS_REFUND = and_(
    entries.c.kind == literal_column("'charge'"),
    _refund.c.source == literal_column("'refund:'", Text).concat(entries.c.completion_id),
)
ENTRY = [*_ENTRY, _refund.c.amount_nano, debts.c.amount_nano, *_REQUEST]
_LEFT_DEBT = debts.c.source == entries.c.source


def _entries() -> Select[tuple[object, ...]]:
    return (
        select(*ENTRY, accounts.c.balance_nano)
        .join_from(entries, accounts, entries.c.account_id == accounts.c.id)
        .outerjoin(usage, usage.c.completion_id == entries.c.completion_id)
        .outerjoin(_refund, _IS_REFUND)
        .outerjoin(debts, _LEFT_DEBT)
        .where(entries.c.account_id == bindparam("account"))
        .limit(bindparam("count"))
    )


NO_ENTRY = 2**62  # above all ids
NEWEST = Statement(_entries().where(entries.c.id < bindparam("before")).order_by(entries.c.id.desc()))
OLDEST = Statement(_entries().where(entries.c.id > bindparam("after")).order_by(entries.c.id))


OF_SPAN = Statement(
    _entries()
    .where(
        entries.c.created_at >= bindparam("start"),
        entries.c.created_at < bindparam("end"),
        entries.c.id < bindparam("before"),
    )
    .order_by(entries.c.id.desc())
)
BALANCES = Statement(  # after the entries from :first to :last: that of the account, less what came later
    text("""
    SELECT e.id, a.balance_nano - e.total + e.amount_nano - (
        SELECT COALESCE(SUM(amount_nano), 0) FROM entries WHERE account_id = :account AND id > :last)
    FROM accounts a JOIN (
        SELECT id, account_id, amount_nano, SUM(amount_nano) OVER (ORDER BY id DESC) AS total FROM entries
        WHERE account_id = :account AND id BETWEEN :first AND :last
    ) e ON e.account_id = a.id""")
)
BOUNDS = Statement(  # the first and last entry of a span, and the balance before it; times do not order the entries
    text("""
    SELECT s.first, s.last, COALESCE(SUM(e.amount_nano), 0) FROM (
        SELECT MIN(id) AS first, MAX(id) AS last FROM entries
        WHERE account_id = :account AND created_at >= :start AND created_at < :end
    ) s LEFT JOIN entries e ON e.account_id = :account AND e.id < s.first
    WHERE s.first IS NOT NULL GROUP BY 1, 2""")
)
SUMS = Statement(
    text("""
    SELECT CASE WHEN entries.created_at < :start THEN 'before' ELSE COALESCE(entries.origin, entries.kind) END,
    SUM(entries.amount_nano) FROM entries
    WHERE entries.account_id = :account AND entries.created_at < :end GROUP BY 1""")
)


class PeriodSums(msgspec.Struct, frozen=True):
    """The balance before a span, and what its entries add up to: by origin, and of its charges."""

    opening_nano: int
    by_origin: dict[str, int]  # 'charge' for charges

    @property
    def charged_nano(self) -> int:
        return -self.by_origin.get("charge", 0)

    @property
    def added_nano(self) -> int:
        """All that was added, less what was taken back."""
        return sum(self.by_origin.values()) + self.charged_nano

    @property
    def closing_nano(self) -> int:
        return self.opening_nano + sum(self.by_origin.values())


class ReplyCost(msgspec.Struct, frozen=True):
    """What a reply was charged for."""

    class_id: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost_nano: int


_REPLY_COST = [usage.c[name] for name in ReplyCost.__struct_fields__]
REPLY_COST = Statement(
    select(*_REPLY_COST).where(usage.c.completion_id == bindparam("id"), usage.c.account_id == bindparam("account"))
)
NEWEST_MAX = 500  # requests of an account among which one is looked for by its x-request-id, which has no index
_newest = (
    select(usage.c.request_id, *_REPLY_COST)
    .where(usage.c.account_id == bindparam("account"))
    .order_by(usage.c.started_at.desc())
    .limit(NEWEST_MAX)
    .subquery()
)
REQUEST_COST = Statement(
    select(*(_newest.c[name] for name in ReplyCost.__struct_fields__))
    .where(_newest.c.request_id == bindparam("id"))
    .limit(1)
)


class ChargeDetails(msgspec.Struct, frozen=True):
    """The charge of a request, and whose it is."""

    account_id: str
    email: str
    entry: Entry


CHARGE = Statement(
    select(accounts.c.id, accounts.c.email, *ENTRY)
    .join_from(entries, accounts, entries.c.account_id == accounts.c.id)
    .outerjoin(usage, usage.c.completion_id == entries.c.completion_id)
    .outerjoin(_refund, _IS_REFUND)
    .outerjoin(debts, _LEFT_DEBT)
    .where(entries.c.kind == literal_column("'charge'"), entries.c.completion_id == bindparam("completion"))
)


async def find_charge(store: Store, completion_id: str) -> ChargeDetails | None:
    row = await store.row(CHARGE, {"completion": completion_id})
    return None if row is None else ChargeDetails(row[0], row[1], Entry(*row[2:]))


async def list_newest(
    store: Store, account_id: str, count: int, before: int = NO_ENTRY, balance_nano: int | None = None
) -> list[Entry]:
    """The newest entries, or those before the one with this id: `balance_nano` is the balance before that one."""
    entries_read = []
    for row in await store.rows(NEWEST, {"account": account_id, "before": before, "count": count}):
        entry = Entry(*row)  # with the balance of the account
        if balance_nano is not None:
            entry = msgspec.structs.replace(entry, balance_nano=balance_nano)
        entries_read.append(entry)
        balance_nano = entry.balance_nano - entry.amount_nano
    return entries_read


async def list_span(store: Store, account_id: str, span: Span, count: int, before: int = NO_ENTRY) -> list[Entry]:
    """The newest entries of a span, or those before the one with this id."""
    values = {"account": account_id, "start": span.start_ms, "end": span.end_ms, "before": before, "count": count}
    rows = await store.report(OF_SPAN, values, account_id)
    if not rows:
        return []
    ends = {"account": account_id, "first": rows[-1][0], "last": rows[0][0]}
    balances_nano: dict[int, int] = dict(await store.report(BALANCES, ends, account_id))
    return [msgspec.structs.replace(Entry(*row), balance_nano=int(balances_nano[row[0]])) for row in rows]


async def sum_entries(store: Store, account_id: str, span: Span) -> PeriodSums:
    """What the entries of an account add up to."""
    values = {"account": account_id, "start": span.start_ms, "end": span.end_ms}
    rows = await store.report(SUMS, values, account_id)
    sums = {name: int(amount_nano) for name, amount_nano in rows}
    return PeriodSums(sums.pop("before", 0), sums)


async def all_entries(store: Store, account_id: str, span: Span = ALWAYS) -> AsyncIterator[Entry]:
    """Every entry of a span, oldest first. At most one page is in memory."""
    after, last, balance_nano = 0, NO_ENTRY, 0
    if span != ALWAYS:
        found = await store.report(
            BOUNDS, {"account": account_id, "start": span.start_ms, "end": span.end_ms}, account_id
        )
        first, last, balance_nano = map(int, found[0] if found else (1, 0, 0))
        after = first - 1
    while after < last:
        rows = await store.report(OLDEST, {"account": account_id, "after": after, "count": EXPORT_ROWS}, account_id)
        if not rows:
            return
        for row in rows:
            entry = Entry(*row[:-1])
            balance_nano += entry.amount_nano
            if span.start_ms <= entry.created_at < span.end_ms:
                yield msgspec.structs.replace(entry, balance_nano=balance_nano)
        after = rows[-1][0]


async def find_reply_cost(store: Store, account_id: str, reply_id: str) -> ReplyCost | None:
    """By the id of the reply or of its request: a client that left before the first word knows no other."""
    if not reply_id.isascii() or not reply_id.isprintable():
        return None
    values = {"id": reply_id, "account": account_id}
    row = await store.row(REPLY_COST, values) or await store.row(REQUEST_COST, values)
    return None if row is None else ReplyCost(*row)
