"""Passwords: which are accepted, and their hashes (argon2id), in threads of low priority so that the API comes first.

A hash takes 64 MiB of memory and a core for a while. There are two queues, each with one thread: one for browsers that
have signed in to the account before, one for all others, so that a flood of sign-ins fills only its own queue. A full
queue refuses more.

`common_passwords.bin` has a digest of each of the 30,000 most common passwords, many of them words, that zxcvbn lists
(the Python package, MIT licence, Copyright (c) 2016 Daniel Wolf): sorted, and cut to 5 bytes.
A test makes the file again from that package. It is read with the first new password.
"""

import asyncio
import hashlib
import os
import string
import sys
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from enum import Enum, auto
from functools import cache
from pathlib import Path

from argon2 import PasswordHasher
from argon2.exceptions import VerifyMismatchError

from cadenza.core.errors import ControlError
from cadenza.parts.site.sign_in.throttle import Throttled

DIGEST_BYTES = 5  # an uncommon text is taken for a common one once in 36 million times
FILE = Path(__file__).with_name("common_passwords.bin")
PASSWORD_CHARS_MIN = 8
PASSWORD_CHARS_MAX = 1024
WAITING_MAX = 16
BUSY_S = 5.0
SIGNS = string.punctuation + " "
DECORATION = string.digits + SIGNS
DECORATION_CHARS_MAX = 4  # like a year: more of them make a common word a better password
WORD_CHARS_MIN = 4  # of the list
FIRST_WORD_CHARS_MAX = 24  # with signs after it
LOW_PRIORITY = 10  # of 19
# The hash of a password that nobody knows, so that an unknown address takes as long as a known one.
DECOY = "$argon2id$v=19$m=65536,t=3,p=4$l7kE/wY253lz9eVGvWck1g$6yNKS97TCXvCA3V6T45lxPn8Uynm1Px4Nm0ZsVtEWsw"


def is_common(password: str) -> bool:
    """Whether it is one character, or one or two common words with a few digits and signs. Case does not matter."""
    words_chars_min = len(password) - DECORATION_CHARS_MAX
    texts = [text for text in (password, password.strip(DECORATION)) if len(text) >= words_chars_min]
    return len(set(password.lower())) == 1 or any(_is_listed(text) or _is_pair(text, words_chars_min) for text in texts)


def _is_pair(text: str, words_chars_min: int) -> bool:
    for end in range(WORD_CHARS_MIN, min(len(text), FIRST_WORD_CHARS_MAX)):
        first, second = text[:end].rstrip(SIGNS), text[end:].lstrip(SIGNS)
        if len(first) + len(second) >= words_chars_min and _is_listed(first) and _is_listed(second):
            return True
    return False


def _is_listed(text: str) -> bool:
    wanted, known = _digest(text), _known()
    starts = range(0, len(known), DIGEST_BYTES)
    found = bisect_left(starts, wanted, key=lambda start: known[start : start + DIGEST_BYTES])
    return found < len(starts) and known.startswith(wanted, starts[found])


def pack(passwords: Iterable[str]) -> bytes:
    """The content of common_passwords.bin."""
    return b"".join(sorted({_digest(password) for password in passwords}))


@cache
def _known() -> bytes:
    return FILE.read_bytes()


def _digest(password: str) -> bytes:
    return hashlib.sha256(password.lower().encode(errors="replace")).digest()[:DIGEST_BYTES]


class HashLane(Enum):
    """The queue that a hash waits in."""

    KNOWN = auto()  # a browser that has signed in to the account before
    OTHERS = auto()


class PasswordWork:
    """Makes and checks the hashes of one process. `finished` counts them, for tests."""

    def __init__(self, waiting_max: int = WAITING_MAX, decoy: str = DECOY) -> None:
        self.finished = 0
        self._decoy = decoy
        self._waiting_max = waiting_max
        self._waiting = dict.fromkeys(HashLane, 0)
        self._hasher = PasswordHasher()
        self._threads = {lane: ThreadPoolExecutor(1, f"passwords-{lane.name}", _lower_priority) for lane in HashLane}

    async def hash(self, password: str, email: str, lane: HashLane = HashLane.OTHERS) -> str:
        """The hash of a new password for the account of this address. ControlError if it is a bad one."""
        secret = clean_password(password, email)
        return str(await self._run(lane, lambda: self._hasher.hash(secret)))

    async def matches(self, password_hash: str | None, password: str, lane: HashLane = HashLane.OTHERS) -> bool:
        """Check a password. Without a hash, or with an empty one, the answer is no, after the same amount of work."""
        if len(password) > PASSWORD_CHARS_MAX:
            return False
        secret = password.encode(errors="replace")
        found = await self._run(lane, lambda: self._verify(password_hash or self._decoy, secret))
        return bool(found and password_hash)

    async def _run(self, lane: HashLane, work: Callable[[], str | bool]) -> str | bool:
        if self._waiting[lane] >= self._waiting_max:
            raise Throttled("Many people are signing in at the moment. Try again in a few seconds.", BUSY_S)
        self._waiting[lane] += 1
        try:
            done = await asyncio.get_running_loop().run_in_executor(self._threads[lane], work)
            self.finished += 1
            return done
        finally:
            self._waiting[lane] -= 1

    def _verify(self, password_hash: str, secret: bytes) -> bool:
        try:
            return self._hasher.verify(password_hash, secret)
        except VerifyMismatchError:
            return False


def hash_password(password: str, email: str) -> str:
    """The hash of a new password for the account of this address. ControlError if it is a bad one."""
    return PasswordHasher().hash(clean_password(password, email))


def clean_password(password: str, email: str) -> bytes:
    """The bytes of a new password. ControlError if it is too short, common, or the address itself."""
    if not PASSWORD_CHARS_MIN <= len(password) <= PASSWORD_CHARS_MAX:
        raise ControlError(f"A password has {PASSWORD_CHARS_MIN} to {PASSWORD_CHARS_MAX} characters.")
    if is_common(password):
        raise ControlError(
            "This password is one of the most common ones, or made of them: these are tried first. Choose another."
        )
    if _is_address(password, email):
        raise ControlError("The password is the e-mail address or a part of it. Choose another.")
    try:
        return password.encode()
    except UnicodeEncodeError:
        raise ControlError("The password is not text in UTF-8: type it again.") from None


def _is_address(password: str, email: str) -> bool:
    """Whether a password is the address or one of its parts, also with digits and punctuation around it."""
    local, _, domain = email.strip().lower().partition("@")
    bare = password.strip().lower()
    own = {f"{local}@{domain}", local, domain}
    return bare in own or bare.strip(DECORATION) in {text.strip(DECORATION) for text in own} - {""}


def _lower_priority() -> None:
    """On Linux a thread has a priority of its own, and the threads that argon2 starts inherit it."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOW_PRIORITY)
