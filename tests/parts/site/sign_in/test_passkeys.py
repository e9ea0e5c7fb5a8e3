"""Signing in with a passkey: which answers of an authenticator count. Its part is played by a key of our own."""

import hashlib
import json
from base64 import urlsafe_b64encode

import cbor2
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, SECP256R1, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from webauthn.helpers import base64url_to_bytes

from cadenza.parts.site.sign_in.devices import Signer
from cadenza.parts.site.sign_in.passkeys import CHALLENGE_MS, SKEW_MS, PasskeyRefused, Passkeys, RelyingParty
from cadenza.parts.site.tables import second_factors
from cadenza.parts.site.tables.second_factors import Passkey
from cadenza.store.store import Store
from cadenza.store.tables.accounts import Account
from tests.parts.site.sign_in.conftest import NOW_MS

SITE = RelyingParty("example.org", "https://example.org")
ELSEWHERE = RelyingParty("example.com", "https://example.com")
PRESENT, VERIFIED = 1, 4  # flags of an answer: a user was there, and was recognised


def text_of(raw: bytes) -> str:
    return urlsafe_b64encode(raw).decode().rstrip("=")


class Authenticator:
    """A passkey of one account, and a browser with a cookie."""

    def __init__(self, store: Store, account: Account) -> None:
        self.account = account
        self._passkeys = Passkeys(store, Signer(store))
        self._key = generate_private_key(SECP256R1())
        place = self._key.public_key().public_numbers()
        public = {1: 2, 3: -7, -1: 1, -2: place.x.to_bytes(32), -3: place.y.to_bytes(32)}
        self.passkey = Passkey(account.id.encode(), account.id, "Phone", cbor2.dumps(public), 0, NOW_MS - 1)

    async def ask(self, now_ms: int = NOW_MS) -> str:
        """The challenge of the site."""
        options = await self._passkeys.ask_to_sign_in(SITE, "cookie", self.account.id, now_ms)
        return str(json.loads(options)["challenge"])

    def answer(self, challenge: str, site: RelyingParty = SITE, flags: int = PRESENT | VERIFIED) -> str:
        client = {"type": "webauthn.get", "challenge": challenge, "origin": site.origin}
        client_data = json.dumps(client).encode()
        data = hashlib.sha256(site.host.encode()).digest() + bytes([flags]) + bytes(4)
        signature = self._key.sign(data + hashlib.sha256(client_data).digest(), ECDSA(SHA256()))
        parts = {"clientDataJSON": client_data, "authenticatorData": data, "signature": signature}
        response = {name: text_of(raw) for name, raw in parts.items()}
        own = text_of(self.passkey.id)
        return json.dumps({"id": own, "rawId": own, "type": "public-key", "response": response})

    async def check(
        self, credential: str, account_id: str | None = None, now_ms: int = NOW_MS, cookie: str = "cookie"
    ) -> str | None:
        """The id of the account that it signs in to; None if it is refused."""
        try:
            return (await self._passkeys.check(SITE, cookie, credential, account_id, now_ms)).id
        except PasskeyRefused:
            return None


@pytest.fixture
async def phone(store: Store, account: Account) -> Authenticator:
    made = Authenticator(store, account)
    await store.transact(lambda tx: second_factors.add_passkey(tx, made.passkey))
    return made


async def test_an_answer_counts_once_for_its_account(phone: Authenticator) -> None:
    """As a second factor it counts for its own account only, and once, whichever clock asked."""
    credential = phone.answer(await phone.ask())
    assert await phone.check(credential, "acct_other") is None
    assert [await phone.check(credential, phone.account.id) for _ in range(2)] == [phone.account.id, None]
    ahead = phone.answer(await phone.ask(NOW_MS + SKEW_MS))  # asked by a machine whose clock is ahead
    assert [await phone.check(ahead) for _ in range(2)] == [phone.account.id, None]


@pytest.mark.parametrize(("age_ms", "counts"), [(CHALLENGE_MS - 1, True), (CHALLENGE_MS, False), (-SKEW_MS - 1, False)])
async def test_a_challenge_has_its_time(phone: Authenticator, age_ms: int, counts: bool) -> None:
    """It counts for five minutes, and is not from the future."""
    credential = phone.answer(await phone.ask(NOW_MS - age_ms))
    assert (await phone.check(credential) is not None) is counts


async def test_other_answers_are_refused(phone: Authenticator) -> None:
    """Of another site, without its user, to a challenge that is not ours, or from another browser."""
    challenge = await phone.ask()
    raw = base64url_to_bytes(challenge)
    forged = text_of(raw[:-1] + bytes([raw[-1] ^ 1]))
    elsewhere = RelyingParty(SITE.host, ELSEWHERE.origin)
    others = [phone.answer(challenge, one) for one in (ELSEWHERE, elsewhere)]
    for credential in (*others, phone.answer(challenge, flags=PRESENT), phone.answer(forged), "{}"):
        assert await phone.check(credential) is None
    assert await phone.check(phone.answer(challenge), cookie="another") is None
    assert await phone.check(phone.answer(challenge)) == phone.account.id
