"""Links that are sent by e-mail or printed by the command line, by the digest of their secret. Each works once."""

from typing import Literal

import msgspec
from sqlalchemy import bindparam, delete, insert, select

from cadenza.store.schema import links
from cadenza.store.statements import Statement
from cadenza.store.store import Store, Transaction

FORGOTTEN_MAX = 100  # in a transaction that adds one
LinkKind = Literal["verify", "reset", "change_email", "invite"]


class Link(msgspec.Struct, frozen=True):
    """What a link may do, and until when. An invitation has no account; an open one has no address either."""

    digest: bytes
    kind: LinkKind
    account_id: str | None
    email: str
    created_at: int
    expires_at: int


COLUMNS = [links.c[name] for name in Link.__struct_fields__]
_OF_DIGEST = links.c.digest == bindparam("link")
_LIVE = (_OF_DIGEST, links.c.kind == bindparam("of_kind"), links.c.expires_at > bindparam("now"))
INSERT = Statement(insert(links), *Link.__struct_fields__)
FIND = Statement(select(*COLUMNS).where(*_LIVE))
REMOVE = Statement(delete(links).where(_OF_DIGEST))
REMOVE_KIND = Statement(
    delete(links).where(links.c.account_id == bindparam("account"), links.c.kind == bindparam("of_kind"))
)
_EXPIRED = select(links.c.digest).where(links.c.expires_at <= bindparam("now")).limit(FORGOTTEN_MAX)
FORGET = Statement(delete(links).where(links.c.digest.in_(_EXPIRED)))


def add(tx: Transaction, link: Link) -> None:
    tx.change(INSERT, msgspec.structs.asdict(link))


async def get(store: Store, digest: bytes, kind: LinkKind, now_ms: int) -> Link | None:
    row = await store.row(FIND, {"link": digest, "of_kind": kind, "now": now_ms})
    return None if row is None else Link(*row)


def take(tx: Transaction, digest: bytes, kind: LinkKind, now_ms: int) -> Link | None:
    """Use a link. Of two transactions that use it at once, one gets None."""
    row = tx.row(FIND, {"link": digest, "of_kind": kind, "now": now_ms})
    return Link(*row) if row and tx.change(REMOVE, {"link": digest}) == 1 else None


def remove_kind(tx: Transaction, account_id: str, kind: LinkKind) -> None:
    tx.change(REMOVE_KIND, {"account": account_id, "of_kind": kind})


def forget_expired(tx: Transaction, now_ms: int) -> None:
    """Some of them: the retention limits remove the rest."""
    tx.change(FORGET, {"now": now_ms})
