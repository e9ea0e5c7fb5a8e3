"""What the chat of the web application needs: the key of its own that it has for each account, and the cost of a reply.

Nobody knows the key, because its digest is of random bytes that are not kept: only a session leads to it.
"""

import secrets

import msgspec
from sqlalchemy import bindparam, insert, select

from cadenza.store.schema import accounts, keys, usage
from cadenza.store.statements import Statement
from cadenza.store.store import Store, Transaction

NAME = "Web chat"
PREFIX = "web-chat----"
ORIGIN = "web"
LOCK_ACCOUNT = Statement(select(accounts.c.id).where(accounts.c.id == bindparam("account")).with_for_update())
DIGEST = Statement(
    select(keys.c.digest).where(keys.c.account_id == bindparam("account"), keys.c.origin == bindparam("wanted"))
)
INSERT = Statement(insert(keys), "id", "account_id", "name", "prefix", "digest", "scopes", "created_at", "origin")


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


async def find_key(store: Store, account_id: str) -> bytes | None:
    """The digest of the web application's key for an account; None before its first chat."""
    row = await store.row(DIGEST, {"account": account_id, "wanted": ORIGIN})
    return None if row is None else bytes(row[0])


def make_key(tx: Transaction, account_id: str, now_ms: int) -> bytes:
    """Make the key, unless another request has made it meanwhile, and return its digest."""
    tx.row(LOCK_ACCOUNT, {"account": account_id})
    if row := tx.row(DIGEST, {"account": account_id, "wanted": ORIGIN}):
        return bytes(row[0])
    digest = secrets.token_bytes(32)
    tx.change(
        INSERT,
        {
            "id": "key_" + secrets.token_urlsafe(18),
            "account_id": account_id,
            "name": NAME,
            "prefix": PREFIX,
            "digest": digest,
            "scopes": "",
            "created_at": now_ms,
            "origin": ORIGIN,
        },
    )
    return digest


async def find_cost(store: Store, account_id: str, completion_id: str) -> ReplyCost | None:
    row = await store.row(COST, {"completion": completion_id, "account": account_id})
    return None if row is None else ReplyCost(*row)
