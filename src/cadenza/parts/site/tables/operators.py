"""What operators read about all accounts and their keys."""

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

import msgspec
from sqlalchemy import ColumnElement, bindparam, case, func, literal_column, select, text

from cadenza.core.public import Public
from cadenza.store.schema import accounts, processes, reserves, sessions, usage, usage_days
from cadenza.store.statements import Statement, total
from cadenza.store.store import Row, Store
from cadenza.store.tables.accounts import COLUMNS, Account, read_account
from cadenza.store.tables.metered import PROMPT_TOKENS

ESCAPE = "\\"
FIRST_TOKEN_MS = (100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000)  # bounds of the counts of replies
FAULT_STATUS = 500  # and above: the service or the upstream failed


class Totals(msgspec.Struct, frozen=True):
    """All accounts together. Erased ones are not counted; a balance that one has is."""

    accounts: int
    operators: int
    suspended: int
    balance_nano: int
    granted_nano: int
    held_nano: int


class ClassUse(Public, msgspec.Struct, frozen=True):
    """What was used of one class. `failed` requests ended because of the service or an upstream."""

    class_id: str
    requests: int
    failed: int
    prompt_tokens: int
    completion_tokens: int
    cost_nano: int


class UseStep(msgspec.Struct, frozen=True):
    """What was used in one step of time. `first_tokens` counts replies by the bounds of FIRST_TOKEN_MS, and above."""

    start_ms: int
    requests: int
    failed: int
    prompt_tokens: int
    completion_tokens: int
    cost_nano: int
    first_tokens: tuple[int, ...]


def _count_if(condition: ColumnElement[bool]) -> ColumnElement[int]:
    return total(case((condition, 1), else_=0))


SEARCH = Statement(
    select(*COLUMNS)
    .where(accounts.c.email > bindparam("after"), accounts.c.email.like(bindparam("pattern"), escape=ESCAPE))
    .order_by(accounts.c.email)
    .limit(bindparam("count"))
)
SPARE = select(total(reserves.c.amount_nano)).where(reserves.c.has_spare)  # `Account` says why it is not held
TOTALS = Statement(
    select(
        _count_if(accounts.c.erased_at.is_(None)),
        _count_if(accounts.c.is_operator),
        _count_if(accounts.c.suspended_at.is_not(None) & accounts.c.erased_at.is_(None)),
        total(accounts.c.balance_nano),
        total(
            case(
                (accounts.c.granted_nano > accounts.c.balance_nano, accounts.c.balance_nano),
                else_=accounts.c.granted_nano,
            )
        ),
        total(accounts.c.held_nano) - SPARE.scalar_subquery(),
    )
)
# completion ids begin with the time, so that this reads a range of the primary key
_SINCE = (usage.c.completion_id >= bindparam("first"), usage.c.started_at >= bindparam("start"))
_USE = (
    func.count(),
    _count_if(usage.c.status >= FAULT_STATUS),
    total(literal_column(PROMPT_TOKENS)),
    total(usage.c.completion_tokens),
    total(usage.c.cost_nano),
)
USE_SINCE = Statement(
    select(
        usage_days.c.class_id,
        total(usage_days.c.requests),
        total(usage_days.c.failed_requests),
        total(literal_column(PROMPT_TOKENS)),
        total(usage_days.c.completion_tokens),
        total(usage_days.c.cost_nano),
    )
    .where(usage_days.c.day >= bindparam("day"))
    .group_by(text("1"))
    .order_by(text("1"))
)
_FIRST_TOKEN_PLACE = case(
    (usage.c.first_byte_ms.is_(None), -1),
    *((usage.c.first_byte_ms <= bound, place) for place, bound in enumerate(FIRST_TOKEN_MS)),
    else_=len(FIRST_TOKEN_MS),
)
USE_BY_STEP = Statement(
    select((usage.c.started_at - bindparam("start")) // bindparam("step"), _FIRST_TOKEN_PLACE, *_USE)
    .where(*_SINCE)
    .group_by(text("1"), text("2"))
    .order_by(text("1"), text("2"))
)
HOSTS = Statement(
    select(func.coalesce(processes.c.host, ""), func.count())
    .where(processes.c.beats >= 0)
    .group_by(text("1"))
    .order_by(text("1"))
)
SESSIONS = Statement(
    select(func.count())
    .select_from(sessions)
    .where(sessions.c.account_id == bindparam("account"), sessions.c.expires_at > bindparam("now"))
)


async def search(store: Store, part: str, after: str, count: int) -> list[Account]:
    """Accounts whose address contains `part`, ordered by address, from the one after `after` on."""
    escaped = "".join(ESCAPE + letter if letter in f"%_{ESCAPE}" else letter for letter in part)
    values = {"after": after, "pattern": f"%{escaped}%", "count": count}
    return [read_account(row) for row in await store.report(SEARCH, values)]


async def totals(store: Store) -> Totals:
    [row] = await store.report(TOTALS, {})
    return Totals(*map(int, row))


async def use_since(store: Store, day: int) -> list[ClassUse]:
    """What was used since the beginning of a day, by class."""
    rows = await store.report(USE_SINCE, {"day": day})
    return [ClassUse(class_id, *map(int, counted)) for class_id, *counted in rows]


async def use_by_step(store: Store, first_id: str, start_ms: int, step_ms: int) -> list[UseStep]:
    """What was used since a time, in steps; a step without requests is left out.

    `first_id` is the lowest completion id of that time.
    """
    rows = await store.report(USE_BY_STEP, {"first": first_id, "start": start_ms, "step": step_ms})
    return [
        _use_step(start_ms + int(step) * step_ms, [row[1:] for row in found])
        for step, found in groupby(rows, key=itemgetter(0))
    ]


def _use_step(at_ms: int, found: Sequence[Row]) -> UseStep:
    """Each row has the place of its requests in `first_tokens`, which is -1 without a first token, and their sums."""
    by_place = {int(place): int(requests) for place, requests, *_ in found}
    requests, failed, prompt_tokens, completion_tokens, cost_nano = (
        sum(int(row[column]) for row in found) for column in range(1, 6)
    )
    first_tokens = tuple(by_place.get(place, 0) for place in range(len(FIRST_TOKEN_MS) + 1))
    return UseStep(at_ms, requests, failed, prompt_tokens, completion_tokens, cost_nano, first_tokens)


async def list_hosts(store: Store) -> list[tuple[str, int]]:
    """The machines of the fleet, and how many processes each has."""
    return [(str(host), int(count)) for host, count in await store.rows(HOSTS, {})]


async def count_sessions(store: Store, account_id: str, now_ms: int) -> int:
    row = await store.row(SESSIONS, {"account": account_id, "now": now_ms})
    return int(row[0]) if row else 0
