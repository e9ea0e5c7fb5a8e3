"""The second factor: codes of an authenticator app (TOTP, RFC 6238: SHA-1, 6 digits, 30 seconds), and recovery codes.

An account that has an app or a passkey has ten recovery codes, which are shown once and stored as digests. A code is
used in one transaction, so of two concurrent uses one fails.

The secret of an app is encrypted with AES-256-GCM, bound to the account. The key comes from the environment or, with
SQLite, from a file beside the store, which is created when it is first needed. With Postgres and without a key in the
environment, secrets are stored unencrypted; they are encrypted with their next use after a key was set.
"""

import hashlib
import hmac
import os
import re
import secrets
from base64 import b32encode
from contextlib import suppress
from pathlib import Path
from typing import Self
from urllib.parse import quote, urlencode

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from cadenza.core.errors import ControlError, Unknown
from cadenza.parts.site.tables import second_factors
from cadenza.parts.site.tables.second_factors import Totp
from cadenza.store.store import Store, Transaction
from cadenza.store.tables import audit_events
from cadenza.store.tables.accounts import Account
from cadenza.store.tables.audit_events import AuditEvent

DIGITS = 6
STEP_S = 30
DRIFT_STEPS = 1
SECRET_BYTES = 20
ISSUER = "Cadenza"
VERSION = b"\x01"
NONCE_BYTES, TAG_BYTES = 12, 16
SEALED_BYTES = len(VERSION) + NONCE_BYTES + SECRET_BYTES + TAG_BYTES
PURPOSE = b"cadenza authenticator apps"
OTHER_KEY = (
    "Codes of your app cannot be checked: the service has another key than when you added it. "
    "Use a recovery code or a passkey, and tell the operator of this service."
)
CODES = 10
LETTERS = "23456789abcdefghjkmnpqrstuvwxyz"  # none that look alike
GROUPS, GROUP_LETTERS = 3, 4  # about 59 bits
WRONG_CODE = "This code is wrong, was used before, or is out of date. Wait for the next one."
WRONG_RECOVERY = "This recovery code is wrong or was used before."


def code_at(secret: bytes, step: int) -> str:
    digest = hmac.digest(secret, step.to_bytes(8), "sha1")
    start = digest[-1] & 0x0F
    number = int.from_bytes(digest[start : start + 4]) & 0x7FFF_FFFF
    return f"{number % 10**DIGITS:0{DIGITS}d}"


def matching_step(secret: bytes, code: str, now_ms: int) -> int | None:
    """The time step of a code: the current one, or the one before or after it, because clocks differ."""
    now = now_ms // 1000 // STEP_S
    steps = [now + drift for drift in range(-DRIFT_STEPS, DRIFT_STEPS + 1)]
    given = code.encode()
    found = [step for step in steps if hmac.compare_digest(code_at(secret, step).encode(), given)]
    return found[-1] if found else None


def written_secret(secret: bytes) -> str:
    """The secret as text to type, in groups of four letters."""
    text = b32encode(secret).decode().rstrip("=")
    return " ".join(text[start : start + 4] for start in range(0, len(text), 4))


def totp_uri(secret: bytes, email: str) -> str:
    """The content of the QR code."""
    values = {"secret": b32encode(secret).decode().rstrip("="), "issuer": ISSUER}
    return f"otpauth://totp/{quote(f'{ISSUER}:{email}', safe=':@')}?{urlencode(values)}"


class Sealer:
    """Encrypts and decrypts the secrets of authenticator apps, for one process."""

    def __init__(self, store: Store, given: str | None = None) -> None:
        self._given = given
        self._path = store.path.with_name(f"{store.path.name}-key") if store.path else None
        self._cipher: AESGCM | None = None

    @property
    def has_key(self) -> bool:
        return bool(self._given or self._path)

    def seal(self, secret: bytes, account_id: str) -> bytes:
        if not self.has_key:
            return secret
        nonce = secrets.token_bytes(NONCE_BYTES)
        return VERSION + nonce + self._find_cipher().encrypt(nonce, secret, account_id.encode())

    def open(self, stored: bytes, account_id: str) -> bytes:
        """Decrypt a secret. ControlError if it was encrypted with another key, or for another account."""
        if not is_sealed(stored):
            return stored
        nonce, sealed = stored[len(VERSION) :][:NONCE_BYTES], stored[len(VERSION) + NONCE_BYTES :]
        try:
            if not self.has_key:
                raise InvalidTag
            return self._find_cipher().decrypt(nonce, sealed, account_id.encode())
        except InvalidTag:
            raise ControlError(OTHER_KEY) from None

    def _find_cipher(self) -> AESGCM:
        if self._cipher is None:
            text = self._given or _read_or_make(self._path)
            self._cipher = AESGCM(hmac.digest(text.encode(), PURPOSE, "sha256"))
        return self._cipher


def is_sealed(stored: bytes) -> bool:
    return len(stored) == SEALED_BYTES and stored.startswith(VERSION)


def _read_or_make(path: Path | None) -> str:
    """The text of the key file. It is created atomically: of several processes, one succeeds."""
    assert path
    if not path.exists():
        new = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
        with os.fdopen(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            path.hardlink_to(new)
        new.unlink()
    return path.read_text().strip()


class Code(msgspec.Struct, frozen=True):
    """A code as it was typed: six digits of the app, or a recovery code."""

    text: str
    is_recovery: bool

    @classmethod
    def parse(cls, typed: str) -> Self:
        text = re.sub(r"[\s-]", "", typed[:100]).lower()
        return cls(text, not re.fullmatch(r"[0-9]{6}", text, re.ASCII))


class Enrolment(msgspec.Struct, frozen=True):
    """The secret for an authenticator app: as an address for a QR code, and as text to type."""

    uri: str
    text: str

    @classmethod
    def of(cls, secret: bytes, account: Account) -> Self:
        return cls(totp_uri(secret, account.email), written_secret(secret))


async def begin_totp(store: Store, sealer: Sealer, account: Account) -> Enrolment:
    """Make a secret for an authenticator app. It takes effect when it is confirmed by a code."""
    secret = secrets.token_bytes(SECRET_BYTES)
    sealed = sealer.seal(secret, account.id)

    def begin(tx: Transaction) -> None:
        found = second_factors.find_totp(tx, account.id)
        if found and found.confirmed_at is not None:
            raise ControlError("There is an authenticator app already. Remove it first.")
        second_factors.replace_totp(tx, account.id, sealed)

    await store.transact(begin)
    return Enrolment.of(secret, account)


async def enrolment_of(store: Store, sealer: Sealer, account: Account) -> Enrolment:
    """The secret that is not confirmed yet."""

    def read(tx: Transaction) -> Enrolment:
        secret = sealer.open(_find_unconfirmed(tx, account).secret, account.id)
        return Enrolment.of(secret, account)

    return await store.transact(read)


async def confirm_totp(store: Store, sealer: Sealer, account: Account, code: str, now_ms: int) -> list[str]:
    """Confirm the app by its first code. Returns recovery codes if the account had none."""
    given = Code.parse(code)

    def confirm(tx: Transaction) -> list[str]:
        _use_totp(tx, sealer, _find_unconfirmed(tx, account), given, now_ms)
        audit_events.add(tx, AuditEvent(now_ms, account.owner, "totp.add", account.id))
        return first_codes(tx, account.id)

    return await store.transact(confirm)


async def remove_totp(store: Store, account: Account, now_ms: int) -> None:
    def remove(tx: Transaction) -> None:
        if not second_factors.remove_totp(tx, account.id):
            raise Unknown("authenticator app")
        audit_events.add(tx, AuditEvent(now_ms, account.owner, "totp.remove", account.id))
        forget_unused_codes(tx, account.id)

    await store.transact(remove)


async def renew_codes(store: Store, account: Account, now_ms: int) -> list[str]:
    """Replace the recovery codes. The old ones stop working."""

    def renew(tx: Transaction) -> list[str]:
        if not second_factors.find_factors(tx, account.id).is_any:
            raise ControlError("Recovery codes belong to a second factor: add an authenticator app or a passkey first.")
        audit_events.add(tx, AuditEvent(now_ms, account.owner, "recovery_codes.renew", account.id))
        return _make_codes(tx, account.id)

    return await store.transact(renew)


async def use_second_factor(store: Store, sealer: Sealer, account: Account, given: Code, now_ms: int) -> None:
    """Use a code to sign in. ControlError if it is wrong or was used before."""

    def use(tx: Transaction) -> None:
        if given.is_recovery:
            if not second_factors.use_code(tx, account.id, _digest(given.text)):
                raise ControlError(WRONG_RECOVERY)
            audit_events.add(tx, AuditEvent(now_ms, account.owner, "recovery_codes.use", account.id))
            return
        found = second_factors.find_totp(tx, account.id)
        if found is None or found.confirmed_at is None:
            raise ControlError(WRONG_CODE)
        _use_totp(tx, sealer, found, given, now_ms)

    await store.transact(use)


def first_codes(tx: Transaction, account_id: str) -> list[str]:
    """Recovery codes for an account that has none; otherwise nothing."""
    has_codes = second_factors.find_factors(tx, account_id).recovery_codes > 0
    return [] if has_codes else _make_codes(tx, account_id)


def forget_unused_codes(tx: Transaction, account_id: str) -> None:
    """Without a second factor, recovery codes have no use."""
    if not second_factors.find_factors(tx, account_id).is_any:
        second_factors.remove_codes(tx, account_id)


def _find_unconfirmed(tx: Transaction, account: Account) -> Totp:
    found = second_factors.find_totp(tx, account.id)
    if found is None or found.confirmed_at is not None:
        raise ControlError("Begin again: there is no authenticator app to confirm.")
    return found


def _make_codes(tx: Transaction, account_id: str) -> list[str]:
    codes = [_make_code() for _ in range(CODES)]
    second_factors.replace_codes(tx, account_id, [_digest(Code.parse(code).text) for code in codes])
    return codes


def _make_code() -> str:
    return "-".join("".join(secrets.choice(LETTERS) for _ in range(GROUP_LETTERS)) for _ in range(GROUPS))


def _use_totp(tx: Transaction, sealer: Sealer, app: Totp, given: Code, now_ms: int) -> None:
    """Use a code. A secret that was stored unencrypted is encrypted."""
    secret = sealer.open(app.secret, app.account_id)
    step = matching_step(secret, given.text, now_ms)
    if step is None or not second_factors.use_step(tx, app.account_id, step, now_ms):
        raise ControlError(WRONG_CODE)
    if sealer.has_key and not is_sealed(app.secret):
        second_factors.replace_secret(tx, app.account_id, sealer.seal(secret, app.account_id))


def _digest(code: str) -> bytes:
    return hashlib.sha256(code.encode(errors="replace")).digest()
