"""Ends what lets somebody sign in: the sessions and the one-time links of an account. The site adds them."""

from sqlalchemy import bindparam, delete

from cadenza.store.schema import links, sessions
from cadenza.store.statements import Statement
from cadenza.store.store import Transaction

END = Statement(
    delete(sessions).where(sessions.c.account_id == bindparam("account"), sessions.c.digest != bindparam("session"))
)
REMOVE_LINKS = Statement(delete(links).where(links.c.account_id == bindparam("account")))


def end_sessions(tx: Transaction, account_id: str, but: bytes = b"") -> int:
    """End all sessions of an account, except `but`."""
    return tx.change(END, {"account": account_id, "session": but})


def remove_links(tx: Transaction, account_id: str) -> None:
    tx.change(REMOVE_LINKS, {"account": account_id})
