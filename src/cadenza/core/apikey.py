"""API keys: make, check, digest. `sk-cdz-` + 43 base62 characters (256 random bits) + 6 of CRC-32.

The checksum lets a mistyped or a leaked key be recognised without a look-up. Only the digest is ever stored.
"""

import hashlib
import secrets
import zlib

KEY_PREFIX = "sk-cdz-"
ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
SECRET_CHARS = 43
CHECK_CHARS = 6
DISPLAY_CHARS = 12


def make_key() -> str:
    body = KEY_PREFIX + _base62(secrets.randbits(256), SECRET_CHARS)
    return body + _checksum(body)


def is_well_formed(key: str) -> bool:
    body, check = key[:-CHECK_CHARS], key[-CHECK_CHARS:]
    return (
        len(key) == len(KEY_PREFIX) + SECRET_CHARS + CHECK_CHARS
        and key.startswith(KEY_PREFIX)
        and all(character in ALPHABET for character in key[len(KEY_PREFIX) :])
        and _checksum(body) == check
    )


def digest_key(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def display_prefix(key: str) -> str:
    return key[:DISPLAY_CHARS]


def _checksum(body: str) -> str:
    return _base62(zlib.crc32(body.encode()), CHECK_CHARS)


def _base62(number: int, length: int) -> str:
    digits = []
    for _ in range(length):
        number, digit = divmod(number, 62)
        digits.append(ALPHABET[digit])
    return "".join(reversed(digits))
