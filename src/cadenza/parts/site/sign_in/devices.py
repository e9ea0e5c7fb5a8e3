"""Browsers that have signed in before, known by a long-lived cookie, and the key that signs it.

The cookie grants no access, only a rate limit of its own: so somebody who uses up the attempts of an account does not
lock its owner out. It holds a signed token for each of the last few accounts.
"""

import binascii
import hashlib
import hmac
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode

from cadenza.parts.site.tables import site_secrets
from cadenza.store.store import Store

KEY_NAME = "sign-in"
LENGTH_BYTES = 4
PURPOSE = "device"
NONCE_BYTES = 16
TOKEN_CHARS = 64  # of 16 random bytes and a signature of 32
ACCOUNTS_MAX = 4
SEPARATOR = "."


class Signer:
    """Signs what the site hands out and wants back unchanged, with one key for all processes of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._key: bytes | None = None

    async def sign(self, purpose: str, *parts: bytes) -> bytes:
        if self._key is None:
            self._key = await site_secrets.get_or_make(self._store, KEY_NAME)
        whole = b"".join(len(part).to_bytes(LENGTH_BYTES) + part for part in (purpose.encode(), *parts))
        return hmac.new(self._key, whole, hashlib.sha256).digest()

    async def is_signed(self, signature: bytes, purpose: str, *parts: bytes) -> bool:
        return hmac.compare_digest(signature, await self.sign(purpose, *parts))


async def find_device(signer: Signer, cookie: str, account_id: str) -> str | None:
    """The token of this account in a cookie."""
    for token in cookie.split(SEPARATOR)[:ACCOUNTS_MAX]:
        if len(token) == TOKEN_CHARS and await _is_of(signer, token, account_id):
            return token
    return None


async def remember_device(signer: Signer, cookie: str, account_id: str) -> str:
    """The cookie with a token for this account first."""
    token = await find_device(signer, cookie, account_id) or await _make(signer, account_id)
    others = [one for one in cookie.split(SEPARATOR) if len(one) == TOKEN_CHARS and one != token]
    return SEPARATOR.join([token, *others[: ACCOUNTS_MAX - 1]])


async def _make(signer: Signer, account_id: str) -> str:
    nonce = secrets.token_bytes(NONCE_BYTES)
    return urlsafe_b64encode(nonce + await signer.sign(PURPOSE, nonce, account_id.encode())).decode()


async def _is_of(signer: Signer, token: str, account_id: str) -> bool:
    try:
        raw = urlsafe_b64decode(token)
    except (binascii.Error, ValueError):
        return False
    return await signer.is_signed(raw[NONCE_BYTES:], PURPOSE, raw[:NONCE_BYTES], account_id.encode())
