"""Sessions: a browser that has signed in. The cookie holds 256 random bits, the store only their SHA-256.

A session ends at sign-out, and after the limits of [retention]: without use, and after sign-in in any case. A new one
is made at every step of signing in, so a secret that was in the browser before (session fixation) is worthless
afterwards.
"""

import hashlib
import secrets

import msgspec

from cadenza.core.errors import Unknown
from cadenza.core.retention_limits import USUAL_LIMITS, RetentionLimits
from cadenza.parts.site.tables import sessions
from cadenza.parts.site.tables.sessions import Session, Stage
from cadenza.store.store import Store, Transaction
from cadenza.store.tables import audit_events, sign_in
from cadenza.store.tables.accounts import Account
from cadenza.store.tables.audit_events import AuditEvent

HALF_MS = 10 * 60 * 1000  # for the second factor
TOUCH_MS = 5 * 60 * 1000  # the least time between two writes of the last use
PROOF_MS = 15 * 60 * 1000
SESSIONS_MAX = 50  # of an account, in each stage: a further one ends the least recently used
AGENT_CHARS_MAX = 200
ID_CHARS = 24
BROWSERS = (
    ("Edg/", "Edge"),
    ("OPR/", "Opera"),
    ("Firefox/", "Firefox"),
    ("Chrome/", "Chrome"),
    ("CriOS/", "Chrome"),
    ("FxiOS/", "Firefox"),
    ("Safari/", "Safari"),
    ("curl/", "curl"),
)
SYSTEMS = (
    ("iPhone", "iPhone"),
    ("iPad", "iPad"),
    ("Android", "Android"),
    ("Windows", "Windows"),
    ("CrOS", "ChromeOS"),
    ("Mac OS X", "macOS"),
    ("Linux", "Linux"),
)


class SignedIn(msgspec.Struct, frozen=True):
    """A live session and its account."""

    session: Session
    account: Account
    has_requests: bool

    @property
    def is_low(self) -> bool:
        """Whether pages say that the credit is low. An account that never made a request is new, not low."""
        account = self.account
        return account.balance_nano < account.low_balance_nano and (self.has_requests or account.balance_nano <= 0)

    def is_proved(self, now_ms: int) -> bool:
        """Whether the password or a passkey was given a short while ago, as sensitive changes need."""
        return now_ms - self.session.proved_at < PROOF_MS


class SessionView(msgspec.Struct, frozen=True):
    """A session as its owner sees it."""

    id: str
    browser: str
    created_at: int
    used_at: int
    is_current: bool


def digest_of(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def begin_session(
    tx: Transaction, account_id: str, stage: Stage, agent: str, now_ms: int, limits: RetentionLimits = USUAL_LIMITS
) -> str:
    """Make a session and return the secret for its cookie."""
    secret = secrets.token_urlsafe(32)
    sessions.forget_expired(tx, now_ms)
    lifetime_ms = limits.session_ms if stage == "complete" else HALF_MS
    session = Session(digest_of(secret), account_id, stage, _clean(agent), now_ms, now_ms, now_ms, now_ms + lifetime_ms)
    sessions.add(tx, session)
    sessions.remove_oldest(tx, account_id, stage, SESSIONS_MAX)
    return secret


def rotate_session(tx: Transaction, session: Session, now_ms: int, *, is_proof: bool = False) -> str | None:
    """Give a session a new secret. Its expiry stays. None if the session has ended meanwhile."""
    if not sessions.remove(tx, session.digest):
        return None
    secret = secrets.token_urlsafe(32)
    proved_at = now_ms if is_proof else session.proved_at
    sessions.add(tx, msgspec.structs.replace(session, digest=digest_of(secret), used_at=now_ms, proved_at=proved_at))
    return secret


async def find_session(
    store: Store, secret: str, now_ms: int, limits: RetentionLimits = USUAL_LIMITS
) -> SignedIn | None:
    """The live session of a cookie, in any stage; None if there is none or its account is suspended."""
    found = await sessions.find(store, digest_of(secret))
    if found is None:
        return None
    session, account, has_requests = found
    if _is_over(session, now_ms, limits) or account.suspended_at is not None:
        return None
    if now_ms - session.used_at >= TOUCH_MS:
        await sessions.touch(store, session.digest, now_ms)
    return SignedIn(session, account, has_requests)


async def list_sessions(
    store: Store, current: Session, now_ms: int, limits: RetentionLimits = USUAL_LIMITS
) -> list[SessionView]:
    """The live sessions of an account, the last used first."""
    found = await sessions.list_for_account(store, current.account_id)
    live = [one for one in found if one.stage == "complete" and not _is_over(one, now_ms, limits)]
    return [_view(one, current) for one in live]


async def end_session(store: Store, digest: bytes) -> None:
    await store.transact(lambda tx: sessions.remove(tx, digest))


async def end_session_by_id(store: Store, account: Account, session_id: str, now_ms: int) -> None:
    found = await sessions.list_for_account(store, account.id)
    digest = next((one.digest for one in found if _id_of(one) == session_id), b"")

    def end(tx: Transaction) -> None:
        if not sessions.remove(tx, digest):
            raise Unknown("session")
        audit_events.add(tx, AuditEvent(now_ms, account.owner, "session.end", account.id, session_id))

    await store.transact(end)


async def end_other_sessions(store: Store, account: Account, digest: bytes, now_ms: int) -> int:
    """Sign out everywhere but here."""

    def end(tx: Transaction) -> int:
        audit_events.add(tx, AuditEvent(now_ms, account.owner, "session.end_others", account.id))
        return sign_in.end_sessions(tx, account.id, digest)

    return await store.transact(end)


def browser_name(agent: str) -> str:
    """The browser and the system that a user agent names, if they are known."""
    browser = next((name for part, name in BROWSERS if part in agent), "")
    system = next((name for part, name in SYSTEMS if part in agent), "")
    return f"{browser} on {system}" if browser and system else browser or system or "Unknown browser"


def _view(session: Session, current: Session) -> SessionView:
    is_current = session.digest == current.digest
    return SessionView(_id_of(session), browser_name(session.agent), session.created_at, session.used_at, is_current)


def _id_of(session: Session) -> str:
    return hashlib.sha256(b"session id" + session.digest).hexdigest()[:ID_CHARS]


def _is_over(session: Session, now_ms: int, limits: RetentionLimits) -> bool:
    """A limit that was lowered counts for older sessions too."""
    ends_at = min(session.expires_at, session.created_at + limits.session_ms)
    return now_ms >= ends_at or now_ms - session.used_at >= limits.session_idle_ms


def _clean(agent: str) -> str:
    return "".join(filter(str.isprintable, agent))[:AGENT_CHARS_MAX]
