"""The sums by day that reports read (`usage_days`): each charge is added in the transaction that writes its row.

A batch changes each row once: what its requests add to the same account, day, key, class and model is added up first.
Only batches write them, under the lock of their account. `ledger/check.py` compares them with the metering rows.
"""

from collections.abc import Sequence
from operator import itemgetter

from sqlalchemy import bindparam, text, update

from cadenza.core.spans import DAY_MS
from cadenza.store.schema import usage, usage_days
from cadenza.store.statements import Statement
from cadenza.store.store import Row, Transaction
from cadenza.store.tables.metered import KEY, SUMS

OK = 200
FAILED_STATUS = 500  # and above
_NAMES = usage.c.keys()
_OF = slice(1, 6)
assert _NAMES[_OF] == [name for name in KEY if name != "day"]
_AT = _NAMES.index("started_at")
_COUNTS = itemgetter(
    *map(
        _NAMES.index,
        (
            *("prompt_tokens", "cached_tokens", "completion_tokens", "cost_nano"),
            *("provider_cost_nano", "status", "estimated"),
        ),
    )
)
COLUMNS = (*KEY, *SUMS)
ON_CONFLICT = (
    f"ON CONFLICT ({', '.join(KEY)}) DO UPDATE SET "
    f"{', '.join(f'{name} = usage_days.{name} + excluded.{name}' for name in SUMS)}"
)
ADD = Statement(
    text(
        f"INSERT INTO usage_days ({', '.join(COLUMNS)}) VALUES ({', '.join(f':{name}' for name in COLUMNS)})"  # noqa: S608 our own names
        f" {ON_CONFLICT}"
    ),
    *COLUMNS,
)
SUBTRACT = Statement(
    update(usage_days)
    .where(*(usage_days.c[name] == bindparam(f"of_{name}") for name in KEY))
    .values({name: usage_days.c[name] - bindparam(f"less_{name}") for name in SUMS})
)
_VALUES = (*(f"of_{name}" for name in KEY), *(f"less_{name}" for name in SUMS))


def add_up(rows: Sequence[Row]) -> list[Row]:
    """What metering rows add: a row of COLUMNS for each account, day, key, class and model."""
    rows_by_key: dict[tuple[Row, int], list[Row]] = {}
    for row in rows:
        key = row[_OF], row[_AT] // DAY_MS
        if key in rows_by_key:
            rows_by_key[key].append(row)
        else:
            rows_by_key[key] = [row]
    return [(of[0], day, *of[1:], *_sums(many)) for (of, day), many in rows_by_key.items()]


def _sums(rows: list[Row]) -> Row:
    """In the order of SUMS."""
    prompt = cached = answer = cost_nano = paid_nano = 0
    failed = counted = broken = estimated = uncosted = uncosted_nano = 0
    for row in rows:
        prompt_tokens, cached_tokens, answer_tokens, nano, provider_nano, status, is_estimated = _COUNTS(row)
        prompt += prompt_tokens
        cached += cached_tokens
        answer += answer_tokens
        cost_nano += nano
        if provider_nano is None:
            uncosted_nano += nano
        else:
            paid_nano += provider_nano
        if status >= FAILED_STATUS:
            failed += 1
        if prompt_tokens or answer_tokens:
            counted += 1
            broken += status != OK
            estimated += is_estimated
            uncosted += provider_nano is None
    requests = (len(rows), prompt, cached, answer, cost_nano, paid_nano)
    return (*requests, failed, counted, broken, estimated, uncosted, uncosted_nano)


def replace(tx: Transaction, before: Row, after: Row) -> None:
    """A metering row was corrected, and may count for another provider and model now."""
    for row in add_up([before]):
        tx.change(SUBTRACT, dict(zip(_VALUES, row, strict=True)))
    tx.insert_rows(ADD, add_up([after]))
