"""Needles: random words that the retention audit sends as content and then looks for, in every form they may have.

All words of a run begin with the same random stem, so that a search looks for the stem only, and reads from what
follows which needle it found. Words are of lower-case letters and digits, which JSON, URLs and HTML write as they are:
the plain form is found in all three. The escaped forms are for programs that escape every character.
"""

import base64
import secrets
import time
from collections.abc import Iterator

import msgspec

LETTERS = "bcdfghjkmnpqrstvwxz"  # without vowels there are no accidental words
CHARACTERS = LETTERS + "23456789"
STEM_CHARACTERS = 12  # 56 bits: not found by chance in a terabyte
NUMBER_CHARACTERS = 4
NEEDLES_MAX = len(CHARACTERS) ** NUMBER_CHARACTERS
SECRET_CHARACTERS_MIN = 12
TRUNCATED = "a needle that is cut off"


class AuditNeedle(msgspec.Struct, frozen=True):
    """A word and the place where it was sent, such as "plain chat, user message"."""

    name: str
    word: str  # for what takes ASCII only: header values, model names, paths

    @property
    def text(self) -> str:
        """A message with the word in it twice: a break in the middle of one leaves the other."""
        return f'{self.word} “naïve” \\ 50% & 1/3 "€" {self.word}'


class NeedleForm(msgspec.Struct, frozen=True):
    """One way in which needles may be written: how each begins, and the names of all that begin like that."""

    form: str
    beginning: bytes
    length: int  # of a whole needle, from its beginning
    names: dict[bytes, str]

    def name(self, found: bytes) -> str:
        return self.names.get(found[: self.length], TRUNCATED)


class Needles:
    """The needles of one run."""

    def __init__(self) -> None:
        self.made_s = time.time()  # no file that is older has one of them
        characters = (secrets.choice(CHARACTERS) for _ in range(STEM_CHARACTERS - 1))
        self._stem = secrets.choice(LETTERS) + "".join(characters)
        self._made = list[AuditNeedle]()
        self._secrets = dict[str, str]()

    @property
    def names(self) -> list[str]:
        return [*(needle.name for needle in self._made), *self._secrets]

    def make(self, name: str) -> AuditNeedle:
        """A new needle. `name` says where it is sent."""
        number = len(self._made)
        assert number < NEEDLES_MAX
        digits = ""
        for _ in range(NUMBER_CHARACTERS):
            number, digit = divmod(number, len(CHARACTERS))
            digits = CHARACTERS[digit] + digits
        needle = AuditNeedle(name, self._stem + digits)
        self._made.append(needle)
        return needle

    def add_secret(self, name: str, secret: str) -> None:
        """Look for a password or key too, of 12 or more ASCII characters. One takes as long as all words together."""
        assert len(secret) >= SECRET_CHARACTERS_MIN
        assert secret.isascii()
        self._secrets[name] = secret

    def forms(self) -> list[NeedleForm]:
        words = {needle.word: needle.name for needle in self._made}
        found = list(_forms(self._stem, words)) if words else []
        for name, secret in self._secrets.items():
            found += _forms(secret, {secret: name})
        return found


def _forms(stem: str, words: dict[str, str]) -> Iterator[NeedleForm]:
    """The forms of words that begin with `stem` and have the same length."""
    seen = set[bytes]()
    for (form, beginning), *whole in zip(encoded(stem), *map(encoded, words), strict=True):
        if beginning not in seen:
            seen.add(beginning)
            names = dict(zip((code for _, code in whole), words.values(), strict=True))
            yield NeedleForm(form, beginning, len(next(iter(names))), names)


def encoded(word: str) -> list[tuple[str, bytes]]:
    """The forms of an ASCII word, in a fixed order. A form of a stem is the beginning of the same form of a word."""
    hexadecimal = [f"{ord(character):02x}" for character in word]
    json_escapes = "".join(f"\\u00{code}" for code in hexadecimal)
    percent_escapes = "".join(f"%{code}" for code in hexadecimal)
    texts = [
        ("plain", word),
        ("upper case", word.upper()),
        ("JSON escapes", json_escapes),
        ("JSON escapes", json_escapes.upper().replace("\\U", "\\u")),
        ("URL-encoded", percent_escapes),
        ("URL-encoded", percent_escapes.upper()),
        ("hexadecimal", "".join(hexadecimal)),
        ("hexadecimal", "".join(hexadecimal).upper()),
        ("UTF-16", "\0".join(word)),  # of either byte order
        *(("base64", _base64(word, shift)) for shift in range(3)),
        *(("base64", _base64(word, shift).replace("+", "-").replace("/", "_")) for shift in range(3)),  # URL-safe
    ]
    return [(form, text.encode()) for form, text in texts]


def _base64(word: str, shift: int) -> str:
    """The characters that encode the whole word and nothing else, if `shift` bytes modulo 3 are before it."""
    code = base64.b64encode(bytes(shift) + word.encode()).decode()
    return code[(shift * 8 + 5) // 6 : (shift + len(word)) * 8 // 6]
