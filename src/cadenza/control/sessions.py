"""Sessions: a browser that has signed in. The cookie holds 256 random bits, the store only their SHA-256.

A session ends at sign-out, after IDLE_MS without use, and LONGEST_MS after sign-in in any case. A new one is made at
every step of signing in, so what was in the browser before is worth nothing afterwards.
"""

import hashlib
import secrets

import msgspec

from cadenza.store import sessions
from cadenza.store.accounts import Account
from cadenza.store.sessions import Session, Stage
from cadenza.store.store import Store, Transaction

HOUR_MS = 60 * 60 * 1000
DAY_MS = 24 * HOUR_MS
IDLE_MS = 7 * DAY_MS
LONGEST_MS = 30 * DAY_MS
HALF_MS = 10 * 60 * 1000  # to give the second factor
TOUCH_MS = 5 * 60 * 1000  # a use is written at most so often
AGENT_CHARS_MAX = 200


class SignedIn(msgspec.Struct, frozen=True):
    """A live session and its account."""

    session: Session
    account: Account


def digest_of(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def begin_session(tx: Transaction, account_id: str, stage: Stage, agent: str, now_ms: int) -> str:
    """Make a session and return the secret for its cookie."""
    secret = secrets.token_urlsafe(32)
    sessions.forget_expired(tx, now_ms)
    lifetime_ms = LONGEST_MS if stage == "complete" else HALF_MS
    session = Session(digest_of(secret), account_id, stage, _clean(agent), now_ms, now_ms, now_ms, now_ms + lifetime_ms)
    sessions.add(tx, session)
    return secret


async def find_session(store: Store, secret: str, now_ms: int) -> SignedIn | None:
    """The live session of a cookie, whatever its stage; None where there is none, or its account is suspended."""
    found = await sessions.find(store, digest_of(secret))
    if found is None:
        return None
    session, account = found
    is_over = now_ms >= session.expires_at or now_ms - session.used_at >= IDLE_MS
    if is_over or account.suspended_at is not None:
        return None
    if now_ms - session.used_at >= TOUCH_MS:
        await sessions.touch(store, session.digest, now_ms)
    return SignedIn(session, account)


async def end_session(store: Store, digest: bytes) -> None:
    await store.transact(lambda tx: sessions.remove(tx, digest))


async def end_other_sessions(store: Store, account_id: str, digest: bytes) -> int:
    """Sign out everywhere but here."""
    return await store.transact(lambda tx: sessions.remove_all(tx, account_id, digest))


def _clean(agent: str) -> str:
    return "".join(filter(str.isprintable, agent))[:AGENT_CHARS_MAX]
