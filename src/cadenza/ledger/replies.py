"""The cost of a reply of the web chat."""

import msgspec
from sqlalchemy import bindparam, select

from cadenza.store.schema import usage
from cadenza.store.statements import Statement
from cadenza.store.store import Store


class ReplyCost(msgspec.Struct, frozen=True):
    """What a reply was charged for."""

    class_id: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost_nano: int


COST = Statement(
    select(*(usage.c[name] for name in ReplyCost.__struct_fields__)).where(
        usage.c.completion_id == bindparam("completion"), usage.c.account_id == bindparam("account")
    )
)


async def find_cost(store: Store, account_id: str, completion_id: str) -> ReplyCost | None:
    if not completion_id.isascii() or not completion_id.isprintable():
        return None
    row = await store.row(COST, {"completion": completion_id, "account": account_id})
    return None if row is None else ReplyCost(*row)
