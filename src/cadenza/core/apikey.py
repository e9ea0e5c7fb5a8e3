"""API keys: make, check, digest. `sk-cdz-` + 43 base62 characters (256 random bits) + 6 of CRC-32.

The checksum identifies mistyped and leaked keys without a look-up. Only the digest is ever stored.
"""

import hashlib
import re
import secrets
import zlib

KEY_PREFIX = "sk-cdz-"
ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
SECRET_CHARS = 43
CHECK_CHARS = 6
DISPLAY_CHARS = 12
SHAPE = re.compile(rb"%b[0-9A-Za-z]{%d}" % (KEY_PREFIX.encode(), SECRET_CHARS + CHECK_CHARS))


def make_key() -> str:
    body = KEY_PREFIX + _base62(secrets.randbits(256), SECRET_CHARS)
    return body + _checksum(body.encode())


def is_well_formed(key: bytes) -> bool:
    """Whether its shape and its checksum are those of a key."""
    return SHAPE.fullmatch(key) is not None and _checksum(key[:-CHECK_CHARS]) == key[-CHECK_CHARS:].decode()


def digest_key(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def display_prefix(key: str) -> str:
    return key[:DISPLAY_CHARS]


def _checksum(body: bytes) -> str:
    return _base62(zlib.crc32(body), CHECK_CHARS)


def _base62(number: int, length: int) -> str:
    digits = []
    for _ in range(length):
        number, digit = divmod(number, 62)
        digits.append(ALPHABET[digit])
    return "".join(reversed(digits))
