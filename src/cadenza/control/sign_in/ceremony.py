"""The WebAuthn ceremonies, by the `webauthn` library.

User verification is required, so a passkey alone proves who signs in. The origin and the host must be ours.
"""

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

from cadenza.store.tables.accounts import Account
from cadenza.store.tables.passkeys import Passkey

TIMEOUT_MS = 5 * 60 * 1000
SITE_NAME = "Cadenza"
# The library does not catch all that can be wrong.
MALFORMED = (WebAuthnException, ValueError, TypeError, KeyError, RecursionError)


class RelyingParty(msgspec.Struct, frozen=True):
    """Where the ceremony takes place: the host that passkeys belong to, and the origin of our pages."""

    host: str
    origin: str


class PasskeyRefused(Exception):
    """What the browser sent does not prove what it should."""


def registration_options(site: RelyingParty, account: Account, challenge: bytes, known: list[bytes]) -> str:
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


def sign_in_options(site: RelyingParty, challenge: bytes, known: list[bytes]) -> str:
    """Without known passkeys, the browser offers those that it has for this site."""
    options = generate_authentication_options(
        rp_id=site.host,
        challenge=challenge,
        timeout=TIMEOUT_MS,
        allow_credentials=[PublicKeyCredentialDescriptor(id=one) for one in known],
        user_verification=UserVerificationRequirement.REQUIRED,
    )
    return options_to_json(options)


def check_registration(site: RelyingParty, challenge: bytes, credential: str) -> tuple[bytes, bytes, int]:
    """The id, the public key and the count of a new passkey."""
    try:
        found = verify_registration_response(
            credential=parse_registration_credential_json(credential),
            expected_challenge=challenge,
            expected_rp_id=site.host,
            expected_origin=site.origin,
            require_user_verification=True,
        )
    except MALFORMED:
        raise PasskeyRefused from None
    return found.credential_id, found.credential_public_key, found.sign_count


def passkey_id(credential: str) -> bytes:
    try:
        return parse_authentication_credential_json(credential).raw_id
    except MALFORMED:
        raise PasskeyRefused from None


def challenge_of(credential: str) -> bytes:
    """The challenge that the browser says it answers."""
    try:
        data = msgspec.json.decode(credential)["response"]["clientDataJSON"]
        return parse_client_data_json(base64url_to_bytes(data)).challenge
    except (*MALFORMED, msgspec.DecodeError):
        raise PasskeyRefused from None


def check_sign_in(site: RelyingParty, challenge: bytes, credential: str, passkey: Passkey) -> int:
    """The new count of the passkey, if it signed the challenge."""
    try:
        found = verify_authentication_response(
            credential=parse_authentication_credential_json(credential),
            expected_challenge=challenge,
            expected_rp_id=site.host,
            expected_origin=site.origin,
            credential_public_key=passkey.public_key,
            credential_current_sign_count=passkey.sign_count,
            require_user_verification=True,
        )
    except MALFORMED:
        raise PasskeyRefused from None
    return found.new_sign_count
