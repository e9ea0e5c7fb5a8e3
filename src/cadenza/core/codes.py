"""API keys, access tokens and random ids: how they are made and checked. Only digests are stored.

A key is `sk-cdz-`, 43 base62 characters (256 random bits) and 6 of CRC-32, which identifies mistyped and leaked keys
without a look-up. An access token is the same after `cdz_`.
"""

import hashlib
import os
import re
import secrets
import zlib

KEY_PREFIX = "sk-cdz-"
TOKEN_PREFIX = "cdz_"  # noqa: S105 public
KEY_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
SECRET_CHARS = 43
CHECK_CHARS = 6
DISPLAY_CHARS = 12
KEY_SHAPE, TOKEN_SHAPE = (
    re.compile(rb"%b[0-9A-Za-z]{%d}" % (prefix.encode(), SECRET_CHARS + CHECK_CHARS))
    for prefix in (KEY_PREFIX, TOKEN_PREFIX)
)

ID_CHARS = 24
ID_ALPHABET = f"{KEY_ALPHABET}-_".encode() * 4  # for each of the 256 bytes one of 64 characters


def make_key() -> str:
    return _make_secret(KEY_PREFIX)


def make_token() -> str:
    return _make_secret(TOKEN_PREFIX)


def is_well_formed(key: bytes, shape: re.Pattern[bytes] = KEY_SHAPE) -> bool:
    """Whether its shape and its checksum are those of a key, or of an access token."""
    return shape.fullmatch(key) is not None and _checksum(key[:-CHECK_CHARS]) == key[-CHECK_CHARS:].decode()


def digest_key(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def display_prefix(key: str) -> str:
    return key[:DISPLAY_CHARS]


def _make_secret(prefix: str) -> str:
    body = prefix + _base62(secrets.randbits(256), SECRET_CHARS)
    return body + _checksum(body.encode())


def _checksum(body: bytes) -> str:
    return _base62(zlib.crc32(body), CHECK_CHARS)


def _base62(number: int, length: int) -> str:
    digits = []
    for _ in range(length):
        number, digit = divmod(number, 62)
        digits.append(KEY_ALPHABET[digit])
    return "".join(reversed(digits))


def random_id() -> str:
    """24 characters that need no escape in a URL. Each one has 6 random bits."""
    return os.urandom(ID_CHARS).translate(ID_ALPHABET).decode()
