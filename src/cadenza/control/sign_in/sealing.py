"""Encrypts the secrets of authenticator apps, by a key that is not in the store: AES-256-GCM, bound to the account.

The key is derived from a variable of the environment or, with SQLite, from a file beside the store, which is created
when it is first needed. With Postgres and without the variable, secrets are stored unencrypted. Such a secret is
encrypted when its app is next used after a key was set.
"""

import hmac
import os
import secrets
from contextlib import suppress
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from cadenza.core.errors import ControlError
from cadenza.store.store import Store

VERSION = b"\x01"
NONCE_BYTES, TAG_BYTES = 12, 16
PLAIN_BYTES = 20  # of the secret of an app
SEALED_BYTES = len(VERSION) + NONCE_BYTES + PLAIN_BYTES + TAG_BYTES
PURPOSE = b"cadenza authenticator apps"
OTHER_KEY = (
    "Codes of your app cannot be checked: the service has another key than when you added it. "
    "Use a recovery code or a passkey, and tell the operator of this service."
)


class Sealer:
    """Seals and opens secrets, for one process."""

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
        """The secret. ControlError if it was sealed by another key, or for another account."""
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
    """The text in the file, which is never partial. Of several processes that make it at the same instant, one does."""
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
