"""Changes of prices, each with the time at which it takes effect. Until then it can be withdrawn."""

import msgspec
from sqlalchemy import bindparam, delete, insert, select

from cadenza.core.money import Price
from cadenza.core.price_schedules import PriceChange
from cadenza.store.class_tables import price_changes
from cadenza.store.statements import Statement
from cadenza.store.store import Store, Transaction

_PRICE = ("input_nano", "output_nano", "cached_input_nano")
_OF_CLASS = price_changes.c.class_id == bindparam("of")
_BY_DATE = select(*(price_changes.c[name] for name in ("class_id", "from_at", *_PRICE))).order_by(
    price_changes.c.class_id, price_changes.c.from_at
)
ALL = Statement(_BY_DATE)
OF_CLASS = Statement(_BY_DATE.where(_OF_CLASS))
ADD = Statement(insert(price_changes), "class_id", "from_at", *_PRICE, "created_at", "actor")
REMOVE = Statement(delete(price_changes).where(_OF_CLASS, price_changes.c.from_at == bindparam("begins_at")))


async def list_all(store: Store) -> dict[str, list[PriceChange]]:
    """The changes of every class that has any, by date."""
    found = dict[str, list[PriceChange]]()
    for class_id, from_at, *price in await store.rows(ALL, {}):
        found.setdefault(class_id, []).append(PriceChange(from_at, Price(*price)))
    return found


def list_of_class(tx: Transaction, class_id: str) -> list[PriceChange]:
    rows = tx.rows(OF_CLASS, {"of": class_id})
    return [PriceChange(from_at, Price(*price)) for _, from_at, *price in rows]


def add(tx: Transaction, class_id: str, change: PriceChange, actor: str, now_ms: int) -> None:
    values = {"class_id": class_id, "from_at": change.from_at, "created_at": now_ms, "actor": actor}
    tx.change(ADD, {**values, **msgspec.structs.asdict(change.price)})


def remove(tx: Transaction, class_id: str, from_at: int) -> None:
    tx.change(REMOVE, {"of": class_id, "begins_at": from_at})
