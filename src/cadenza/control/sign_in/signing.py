"""Signs what the site hands out and wants back unchanged, with one key for all processes of a store."""

import hashlib
import hmac

from cadenza.store.store import Store
from cadenza.store.tables import site_secrets

KEY_NAME = "sign-in"
LENGTH_BYTES = 4


class Signer:
    """Signs with the key of the store, which is read once."""

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
