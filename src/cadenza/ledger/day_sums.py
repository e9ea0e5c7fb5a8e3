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
COLUMNS = (*KEY, *SUMS)
_OF_ROW = itemgetter(
    *map(
        usage.c.keys().index,
        (
            *("account_id", "started_at", "key_id", "class_id", "provider", "model"),
            *("prompt_tokens", "cached_tokens", "completion_tokens", "cost_nano"),
            *("provider_cost_nano", "status", "estimated"),
        ),
    )
)
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
    found: dict[Row, list[Row]] = {}
    for row in rows:
        account_id, at_ms, key_id, class_id, provider, model, prompt, cached, answer, cost, paid, status, estimated = (
            _OF_ROW(row)
        )
        is_counted = prompt + answer > 0
        added = (
            *(1, prompt, cached, answer, cost, paid or 0, status >= FAILED_STATUS, is_counted),
            *(is_counted and status != OK, is_counted and estimated),
            *((is_counted, cost) if paid is None else (0, 0)),
        )
        found.setdefault((account_id, at_ms // DAY_MS, key_id, class_id, provider, model), []).append(added)
    return [(*key, *map(sum, zip(*many, strict=True))) for key, many in found.items()]


def replace(tx: Transaction, before: Row, after: Row) -> None:
    """A metering row was corrected, and may count for another provider and model now."""
    for row in add_up([before]):
        tx.change(SUBTRACT, dict(zip(_VALUES, row, strict=True)))
    tx.insert_rows(ADD, add_up([after]))
