"""Codes of vouchers: CDZ-XXXX-XXXX-XXXX-XXXX-XXXX. The first group may be shown, the rest is 80 random bits."""

import hashlib
import secrets

ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # no I, L, O and U
MISREAD = str.maketrans("OIL", "011")
MARK = "CDZ"
GROUPS = 5
GROUP_CHARS = 4


def make_code() -> str:
    groups = ("".join(secrets.choice(ALPHABET) for _ in range(GROUP_CHARS)) for _ in range(GROUPS))
    return "-".join((MARK, *groups))


def normal_code(typed: str) -> str | None:
    """The code in its normal form, with other case, dashes and spaces corrected; None if it cannot be one."""
    letters = "".join(char for char in typed.upper() if char.isalnum())
    letters = letters.removeprefix(MARK).translate(MISREAD)
    if len(letters) != GROUPS * GROUP_CHARS or not set(letters) <= set(ALPHABET):
        return None
    groups = (letters[start : start + GROUP_CHARS] for start in range(0, len(letters), GROUP_CHARS))
    return "-".join((MARK, *groups))


def digest_code(code: str) -> bytes:
    return hashlib.sha256(code.encode()).digest()


def code_prefix(code: str) -> str:
    """The part that may be shown."""
    return code[: len(MARK) + 1 + GROUP_CHARS]
