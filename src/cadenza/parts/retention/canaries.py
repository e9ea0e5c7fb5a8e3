"""Canaries: random words that the audit sends as content and then searches for, in every form they may have.

All words of a run begin with the same random stem, so a search looks for the stem only, and reads from what follows
which canary it found. Words have lower-case letters and digits only, which JSON, URLs and HTML write as they are: the
plain form is found in all three. The escaped forms are for programs that escape every character.
"""

import base64
import secrets
import time
from collections.abc import Iterator
from typing import Any

import msgspec

LETTERS = "bcdfghjkmnpqrstvwxz"  # without vowels there are no accidental words
CHARACTERS = LETTERS + "23456789"
STEM_CHARACTERS = 12  # 56 bits: not found by chance in a terabyte
TRUNCATED = "a canary that is cut off"
WORD, TEXT = "{word}", "{text}"  # in a template

Template = Any  # as JSON has it: strings, lists and dictionaries


class Canary(msgspec.Struct, frozen=True):
    """A word, and where it is sent, such as "plain chat, user message"."""

    name: str
    word: str  # for what takes ASCII only: header values, model names, paths

    @property
    def text(self) -> str:
        """A message with the word in it twice: a break in the middle of one leaves the other."""
        return f'{self.word} “naïve” \\ 50% & 1/3 "€" {self.word}'

    def fill(self, template: Template, **others: str) -> Template:
        """The template with {word}, {text} and others replaced, in strings and in names of fields, at any depth."""
        if isinstance(template, str):
            for name, value in {"word": self.word, "text": self.text, **others}.items():
                template = template.replace(f"{{{name}}}", value)
        elif isinstance(template, dict):
            return {self.fill(name, **others): self.fill(value, **others) for name, value in template.items()}
        return [self.fill(one, **others) for one in template] if isinstance(template, list) else template


class CanaryForm(msgspec.Struct, frozen=True):
    """One way in which canaries may be written: how each begins, and the names of all that begin like that."""

    form: str
    beginning: bytes
    length: int  # of a whole canary, from its beginning
    names: dict[bytes, str]


class CanarySet:
    """The canaries of one run."""

    def __init__(self) -> None:
        self.made_s = time.time()  # no file that is older has one of them
        self._stem = secrets.choice(LETTERS) + "".join(secrets.choice(CHARACTERS) for _ in range(STEM_CHARACTERS - 1))
        self._words = dict[str, str]()  # names by word
        self._secrets = dict[str, str]()
        self._forms = list[CanaryForm]()

    def make(self, name: str) -> Canary:
        """A new canary. `name` says where it is sent."""
        high, low = divmod(len(self._words), len(CHARACTERS))
        word = f"{self._stem}{CHARACTERS[high]}{CHARACTERS[low]}"
        self._words[word] = name
        self._forms.clear()
        return Canary(name, word)

    def add_secret(self, name: str, secret: str) -> None:
        """Search for a password, key or cookie of ASCII characters too, unless it is too short."""
        if len(secret) >= STEM_CHARACTERS:
            self._secrets[secret] = name
            self._forms.clear()

    def forms(self) -> list[CanaryForm]:
        if not self._forms:
            self._forms = list(_forms(self._stem, self._words)) if self._words else []
            for secret, name in self._secrets.items():
                self._forms += _forms(secret, {secret: name})
        return self._forms


def _forms(stem: str, words: dict[str, str]) -> Iterator[CanaryForm]:
    """The forms of words that begin with `stem` and have the same length."""
    seen = set[bytes]()
    for (form, beginning), *whole in zip(_encode(stem), *map(_encode, words), strict=True):
        if beginning not in seen:
            seen.add(beginning)
            names = dict(zip((code for _, code in whole), words.values(), strict=True))
            yield CanaryForm(form, beginning, len(next(iter(names))), names)


def _encode(word: str) -> list[tuple[str, bytes]]:
    """The forms of an ASCII word, in a fixed order. A form of a stem is the beginning of the same form of a word."""
    codes = [f"{ord(character):02x}" for character in word]
    escaped, percent = ("".join(before + code for code in codes) for before in ("\\u00", "%"))
    shifted = [_base64(word, shift) for shift in range(3)]
    forms = {
        "plain": [word],
        "upper case": [word.upper()],
        "JSON escapes": [escaped, escaped.upper().replace("\\U", "\\u")],
        "URL-encoded": [percent, percent.upper()],
        "hexadecimal": ["".join(codes), "".join(codes).upper()],
        "UTF-16": ["\0".join(word)],  # of either byte order
        "base64": [*shifted, *(code.replace("+", "-").replace("/", "_") for code in shifted)],  # also for URLs
    }
    return [(form, text.encode()) for form, texts in forms.items() for text in texts]


def _base64(word: str, shift: int) -> str:
    """The characters that encode the whole word and nothing else, if `shift` bytes modulo 3 are before it."""
    code = base64.b64encode(bytes(shift) + word.encode()).decode()
    return code[(shift * 8 + 5) // 6 : (shift + len(word)) * 8 // 6]
