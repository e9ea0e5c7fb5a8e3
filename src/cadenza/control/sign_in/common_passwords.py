"""Whether a password is one of the most common ones, without asking anybody.

`common_passwords.bin` has a digest of each password of 8 characters or more among the 30,000 most common ones that
zxcvbn lists (the Python package, MIT licence, Copyright (c) 2016 Daniel Wolf): sorted, and cut to 5 bytes.
A test makes the file again from that package. It is read with the first new password.
"""

import hashlib
from bisect import bisect_left
from collections.abc import Iterable
from functools import cache
from pathlib import Path

DIGEST_BYTES = 5  # an uncommon password is taken for a common one once in 90 million times
FILE = Path(__file__).with_name("common_passwords.bin")


def is_common(password: str) -> bool:
    """Upper and lower case count as the same."""
    wanted, known = _digest(password), _known()
    starts = range(0, len(known), DIGEST_BYTES)
    found = bisect_left(starts, wanted, key=lambda start: known[start : start + DIGEST_BYTES])
    return found < len(starts) and known.startswith(wanted, starts[found])


def pack(passwords: Iterable[str]) -> bytes:
    """The content of the file."""
    return b"".join(sorted({_digest(password) for password in passwords}))


@cache
def _known() -> bytes:
    return FILE.read_bytes()


def _digest(password: str) -> bytes:
    return hashlib.sha256(password.lower().encode(errors="replace")).digest()[:DIGEST_BYTES]
