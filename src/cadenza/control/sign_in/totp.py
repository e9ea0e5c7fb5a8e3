"""One-time codes of an authenticator app (RFC 6238: SHA-1, 6 digits, 30 seconds). Pure."""

import hmac
import secrets
from base64 import b32encode
from urllib.parse import quote, urlencode

DIGITS = 6
STEP_S = 30
DRIFT_STEPS = 1
SECRET_BYTES = 20
ISSUER = "Cadenza"


def make_secret() -> bytes:
    return secrets.token_bytes(SECRET_BYTES)


def code_at(secret: bytes, step: int) -> str:
    digest = hmac.digest(secret, step.to_bytes(8), "sha1")
    start = digest[-1] & 0x0F
    number = int.from_bytes(digest[start : start + 4]) & 0x7FFF_FFFF
    return f"{number % 10**DIGITS:0{DIGITS}d}"


def matching_step(secret: bytes, code: str, now_ms: int) -> int | None:
    """The time step that a code is of: now, one before or one after. Clocks may differ by that much."""
    now = now_ms // 1000 // STEP_S
    steps = [now + drift for drift in range(-DRIFT_STEPS, DRIFT_STEPS + 1)]
    given = code.encode()
    found = [step for step in steps if hmac.compare_digest(code_at(secret, step).encode(), given)]
    return found[-1] if found else None


def written_secret(secret: bytes) -> str:
    """For typing: groups of four letters."""
    text = b32encode(secret).decode().rstrip("=")
    return " ".join(text[start : start + 4] for start in range(0, len(text), 4))


def uri(secret: bytes, email: str) -> str:
    """What the QR code holds."""
    values = {"secret": b32encode(secret).decode().rstrip("="), "issuer": ISSUER}
    return f"otpauth://totp/{quote(f'{ISSUER}:{email}', safe=':@')}?{urlencode(values)}"
