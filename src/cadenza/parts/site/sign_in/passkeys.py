"""Passkeys: add, list, remove, and sign in with one. WebAuthn is verified by the `webauthn` library.

User verification is required, so a passkey alone proves who signs in; origin and host must be the site's. A challenge
is not stored: it holds its time and a signature over the browser's cookie, and is valid for that browser and for five
minutes. It is valid once, because a passkey accepts only challenges that are newer than its last use.
"""

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import msgspec
from webauthn import (
    generate_authentication_options,
    generate_registration_options,
    options_to_json,
    verify_authentication_response,
    verify_registration_response,
)
from webauthn.helpers import (
    base64url_to_bytes,
    parse_authentication_credential_json,
    parse_client_data_json,
    parse_registration_credential_json,
)
from webauthn.helpers.exceptions import WebAuthnException
from webauthn.helpers.structs import (
    AuthenticatorSelectionCriteria,
    PublicKeyCredentialDescriptor,
    ResidentKeyRequirement,
    UserVerificationRequirement,
)

from cadenza.core.errors import ControlError, Unknown
from cadenza.parts.site.sign_in.devices import Signer
from cadenza.parts.site.sign_in.second_factor import first_codes, forget_unused_codes
from cadenza.parts.site.tables import second_factors
from cadenza.parts.site.tables.second_factors import Passkey
from cadenza.store.store import Store, StoreRefused, Transaction
from cadenza.store.tables import accounts, audit_events
from cadenza.store.tables.accounts import Account
from cadenza.store.tables.audit_events import AuditEvent

TIMEOUT_MS = 5 * 60 * 1000
SITE_NAME = "Cadenza"
# The library lets some errors of malformed input through.
MALFORMED = (WebAuthnException, ValueError, TypeError, KeyError, RecursionError)
Purpose = Literal["add", "sign_in"]
TIME_BYTES = 8
NONCE_BYTES = 16
CHALLENGE_BYTES = TIME_BYTES + NONCE_BYTES + 32
CHALLENGE_MS = 5 * 60 * 1000
SKEW_MS = 5000  # the clocks of two machines may differ by this much
PASSKEYS_MAX = 20
NAME_CHARS_MAX = 60


class RelyingParty(msgspec.Struct, frozen=True):
    """The site, in WebAuthn's terms: the host that passkeys belong to, and the origin of its pages."""

    host: str
    origin: str


class PasskeyRefused(ControlError):
    """The browser's answer is malformed, or proves nothing."""

    def __init__(self) -> None:
        super().__init__("The passkey was not accepted. Try again.")


@contextmanager
def _refused_if_malformed() -> Iterator[None]:
    try:
        yield
    except (*MALFORMED, msgspec.DecodeError):
        raise PasskeyRefused from None


def _registration_options(site: RelyingParty, account: Account, challenge: bytes, known: list[bytes]) -> str:
    options = generate_registration_options(
        rp_id=site.host,
        rp_name=SITE_NAME,
        user_id=account.id.encode(),
        user_name=account.email,
        challenge=challenge,
        timeout=TIMEOUT_MS,
        exclude_credentials=[PublicKeyCredentialDescriptor(id=one) for one in known],
        authenticator_selection=AuthenticatorSelectionCriteria(
            resident_key=ResidentKeyRequirement.REQUIRED, user_verification=UserVerificationRequirement.REQUIRED
        ),
    )
    return options_to_json(options)


def _sign_in_options(site: RelyingParty, challenge: bytes, known: list[bytes]) -> str:
    """Without known passkeys, the browser offers those that it has for this site."""
    options = generate_authentication_options(
        rp_id=site.host,
        challenge=challenge,
        timeout=TIMEOUT_MS,
        allow_credentials=[PublicKeyCredentialDescriptor(id=one) for one in known],
        user_verification=UserVerificationRequirement.REQUIRED,
    )
    return options_to_json(options)


def _check_registration(site: RelyingParty, challenge: bytes, credential: str) -> tuple[bytes, bytes, int]:
    """The id, the public key and the signature counter of a new passkey."""
    with _refused_if_malformed():
        found = verify_registration_response(
            credential=parse_registration_credential_json(credential),
            expected_challenge=challenge,
            expected_rp_id=site.host,
            expected_origin=site.origin,
            require_user_verification=True,
        )
    return found.credential_id, found.credential_public_key, found.sign_count


def _credential_id(credential: str) -> bytes:
    with _refused_if_malformed():
        return parse_authentication_credential_json(credential).raw_id


def _challenge_of(credential: str) -> bytes:
    """The challenge that the browser claims to answer."""
    with _refused_if_malformed():
        data = msgspec.json.decode(credential)["response"]["clientDataJSON"]
        return parse_client_data_json(base64url_to_bytes(data)).challenge


def _check_sign_in(site: RelyingParty, challenge: bytes, credential: str, passkey: Passkey) -> int:
    """The new signature counter of the passkey, if it signed the challenge."""
    with _refused_if_malformed():
        found = verify_authentication_response(
            credential=parse_authentication_credential_json(credential),
            expected_challenge=challenge,
            expected_rp_id=site.host,
            expected_origin=site.origin,
            credential_public_key=passkey.public_key,
            credential_current_sign_count=passkey.sign_count,
            require_user_verification=True,
        )
    return found.new_sign_count


class Passkeys:
    """The passkeys of a site, for one process."""

    def __init__(self, store: Store, signer: Signer) -> None:
        self._store = store
        self._signer = signer

    async def ask_to_add(self, site: RelyingParty, account: Account, cookie: str, now_ms: int) -> str:
        """The options for the browser to make a passkey, as JSON."""
        known = await second_factors.list_passkeys(self._store, account.id)
        if len(known) >= PASSKEYS_MAX:
            raise ControlError(f"An account has at most {PASSKEYS_MAX} passkeys. Remove one first.")
        challenge = await self._challenge("add", cookie, now_ms)
        return _registration_options(site, account, challenge, [one.id for one in known])

    async def add(
        self, site: RelyingParty, account: Account, cookie: str, name: str, credential: str, now_ms: int
    ) -> list[str]:
        """Store a passkey under a name that its owner chose. Returns recovery codes if the account had none."""
        name = name.strip() or "Passkey"
        if len(name) > NAME_CHARS_MAX or not name.isprintable():
            raise ControlError(f"The name of a passkey is one line of at most {NAME_CHARS_MAX} characters.")
        challenge, _ = await self._answered("add", cookie, credential, now_ms)
        made = await asyncio.to_thread(_check_registration, site, challenge, credential)
        passkey = Passkey(made[0], account.id, name, made[1], made[2], now_ms)

        def add(tx: Transaction) -> list[str]:
            second_factors.add_passkey(tx, passkey)
            audit_events.add(tx, AuditEvent(now_ms, account.owner, "passkey.add", account.id, passkey.id.hex()))
            return first_codes(tx, account.id)

        try:
            return await self._store.transact(add)
        except StoreRefused:
            raise PasskeyRefused from None

    async def ask_to_sign_in(self, site: RelyingParty, cookie: str, account_id: str | None, now_ms: int) -> str:
        """The options for the browser to use a passkey of this account, or any that it has for this site, as JSON."""
        known = await second_factors.list_passkeys(self._store, account_id) if account_id else []
        return _sign_in_options(site, await self._challenge("sign_in", cookie, now_ms), [one.id for one in known])

    async def check(
        self, site: RelyingParty, cookie: str, credential: str, account_id: str | None, now_ms: int
    ) -> Account:
        """The account whose passkey signed the challenge. PasskeyRefused if there is none, or it is another account."""
        challenge, asked_at = await self._answered("sign_in", cookie, credential, now_ms)
        passkey = await second_factors.get_passkey(self._store, _credential_id(credential))
        if passkey is None or (account_id is not None and passkey.account_id != account_id):
            raise PasskeyRefused
        count = await asyncio.to_thread(_check_sign_in, site, challenge, credential, passkey)
        used_at = max(now_ms, asked_at)
        is_first = await self._store.transact(
            lambda tx: second_factors.use_passkey(tx, passkey, asked_at, count, used_at)
        )
        account = await accounts.get(self._store, passkey.account_id)
        if not is_first or account is None:
            raise PasskeyRefused
        return account

    async def remove(self, account: Account, passkey_id: str, now_ms: int) -> None:
        def remove(tx: Transaction) -> None:
            if not second_factors.remove_passkey(tx, account.id, read_id(passkey_id)):
                raise Unknown("passkey")
            audit_events.add(tx, AuditEvent(now_ms, account.owner, "passkey.remove", account.id, passkey_id))
            forget_unused_codes(tx, account.id)

        await self._store.transact(remove)

    async def _challenge(self, purpose: Purpose, cookie: str, now_ms: int) -> bytes:
        head = now_ms.to_bytes(TIME_BYTES) + secrets.token_bytes(NONCE_BYTES)
        return head + await self._signer.sign(f"passkey {purpose}", head, cookie.encode())

    async def _answered(self, purpose: Purpose, cookie: str, credential: str, now_ms: int) -> tuple[bytes, int]:
        """The challenge and its time. PasskeyRefused if it was not made for this browser in the last minutes."""
        challenge = _challenge_of(credential)
        if len(challenge) != CHALLENGE_BYTES:
            raise PasskeyRefused
        head, signature = challenge[: TIME_BYTES + NONCE_BYTES], challenge[TIME_BYTES + NONCE_BYTES :]
        asked_at = int.from_bytes(head[:TIME_BYTES])
        is_ours = await self._signer.is_signed(signature, f"passkey {purpose}", head, cookie.encode())
        if not is_ours or not -SKEW_MS <= now_ms - asked_at < CHALLENGE_MS:
            raise PasskeyRefused
        return challenge, asked_at


def read_id(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""
