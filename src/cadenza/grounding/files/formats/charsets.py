"""Guesses the encoding of text that is not UTF-8: the one in which its bytes are the least surprising.

Each language in an encoding is a way to write the bytes down, and takes so many bits: a frequent letter few, a rare one
more, one that the language does not have many. The way that takes the fewest bits is the guess. Only the first 16 KiB
from the first byte beyond ASCII are looked at, so the time is bounded: 20 ms.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache

import msgspec

from cadenza.grounding.files.formats.languages import LANGUAGES, Writing

SAMPLE_BYTES = 16 * 1024
BEFORE_BYTES = 100  # of the line of the first byte beyond ASCII
BEYOND_ASCII = re.compile(rb"[\x80-\xff]")

# in bits
COMMON = 13.5  # a character that the language has, but not in its list
STRANGE = 18.0  # of the thousands of characters that an encoding has
STRANGE_LETTER = 13.0  # of the 128 that an encoding has
NO_TEXT = 15.0  # not a character, beside being strange
MIXED = 4.0  # a letter beside an ASCII letter, in a language that is not written with these
DOUBLE = 2.5  # two letters beyond ASCII side by side, in a language that has few
INNER_CAPITAL = 6.0
INNER_SIGN = 5.0  # the other encodings have letters in the place of these signs
PER_BYTE_MAX = 7.5  # text takes 4 to 6, other data 8 and more
SHORT_TEXT = 16.0  # a few characters may take so much more
RANK_SHIFT = 2

ASCII_BITS = (
    {chr(code): 7.0 for code in range(128)}
    | dict.fromkeys("ABCDEFGHIJKLMNOPQRSTUVWXYZ", 6.5)
    | dict.fromkeys("0123456789,.\n\r\t", 5.0)
    | dict.fromkeys("abcdefghijklmnopqrstuvwxyz", 4.5)
    | {" ": 3.0}
)
EUC_TRAILS = range(0xA1, 0xFF)
COMMON_CHARACTERS = {  # the part of each encoding that has the common ones: its first and last lead byte
    "cp932": ("euc_jp", 0xB0, 0xCF, EUC_TRAILS),
    "euc_jp": ("euc_jp", 0xB0, 0xCF, EUC_TRAILS),
    "gb18030": ("gb2312", 0xB0, 0xD7, EUC_TRAILS),
    "cp950": ("cp950", 0xA4, 0xC6, (*range(0x40, 0x7F), *EUC_TRAILS)),
    "cp949": ("euc_kr", 0xB0, 0xC8, EUC_TRAILS),
}
LETTER = r"[^\W\d_a-zA-Zªºµ]"  # beyond ASCII
BESIDE_ASCII = re.compile(rf"[a-zA-Z](?={LETTER})|{LETTER}(?=[a-zA-Z])")
INNER_SIGNS = re.compile("(?<=[a-z])[¡¢¥¨ª¬¯²³¸¹º¼½¾¿](?=[a-z])")
SIDE_BY_SIDE = re.compile(rf"{LETTER}(?={LETTER})")
NOT_TEXT = re.compile("[\x80-\x9f\ufffd\ue000-\uf8ff]")


class Candidate(msgspec.Struct, frozen=True):
    """An encoding, and for each of its languages what it costs to suppose it and what each character costs."""

    codec: str
    writing: Writing
    languages: list[tuple[float, dict[str, float]]]


def guess_charset(data: bytes) -> str | None:
    """The codec for these bytes, which have some beyond ASCII; None if they are hardly text in any encoding."""
    sample = _sample(data)
    bits, codec = min((bits, one.codec) for one in _candidates() for bits in _bits(one, sample))
    return codec if bits <= PER_BYTE_MAX * len(sample) + SHORT_TEXT else None


def _sample(data: bytes) -> bytes:
    """From the line of the first byte beyond ASCII; it ends with a line if there is one to end with."""
    first = BEYOND_ASCII.search(data)
    assert first
    start = max(first.start() - BEFORE_BYTES, 0)
    start = max(start, data.rfind(b"\n", start, first.start()) + 1)
    sample = data[start : start + SAMPLE_BYTES]
    end = sample.rfind(b"\n") if start + SAMPLE_BYTES < len(data) else -1
    return sample[:end] if end > SAMPLE_BYTES // 2 else sample


def _bits(candidate: Candidate, sample: bytes) -> Iterator[float]:
    """How many bits the sample takes in each language of an encoding."""
    text = sample.decode(candidate.codec, "replace")
    unlikely = [(NOT_TEXT, NO_TEXT), *_unlikely(candidate.writing)]
    shared_bits = sum(bits * len(pattern.findall(text)) for pattern, bits in unlikely)
    strange_bits = STRANGE if candidate.writing is Writing.CHARACTERS else STRANGE_LETTER
    counts = Counter(text)
    for prior_bits, bits in candidate.languages:
        letters_bits = sum(count * bits.get(char, strange_bits) for char, count in counts.items())
        yield prior_bits + shared_bits + letters_bits


@cache
def _candidates() -> list[Candidate]:
    made = dict[str, Candidate]()
    for language in LANGUAGES:
        candidate = made.setdefault(language.codec, Candidate(language.codec, language.writing, []))
        common = dict.fromkeys(_common_characters(language.codec), COMMON)
        candidate.languages.append((language.prior_bits, ASCII_BITS | common | _bits_of_letters(language.letters)))
    return list(made.values())


def _bits_of_letters(letters: str) -> dict[str, float]:
    """By Zipf's law: the frequency of a letter is one by its rank."""
    total = math.log2(sum(1 / (rank + RANK_SHIFT) for rank in range(1, len(letters) + 1)))
    return {letter: math.log2(rank + RANK_SHIFT) + total for rank, letter in enumerate(letters, 1)}


def _common_characters(codec: str) -> set[str]:
    if codec not in COMMON_CHARACTERS:
        return set()
    source, first, last, trails = COMMON_CHARACTERS[codec]
    pairs = (bytes((lead, trail)) for lead in range(first, last + 1) for trail in trails)
    return set("".join(pair.decode(source, "ignore") for pair in pairs))


@cache
def _unlikely(writing: Writing) -> list[tuple[re.Pattern[str], float]]:
    """What is rare in a writing, and what each costs."""
    if writing is Writing.CHARACTERS:
        return [(BESIDE_ASCII, MIXED)]
    beyond = [chr(code) for code in range(0x80, 0x530)]
    small, capital = "".join(filter(str.islower, beyond)), "".join(filter(str.isupper, beyond))
    inner_capitals = re.compile(f"[a-z{small}][{capital}]|[{small}][A-Z]")
    if writing is Writing.ALPHABET:
        return [(BESIDE_ASCII, MIXED), (inner_capitals, INNER_CAPITAL)]
    return [(SIDE_BY_SIDE, DOUBLE), (INNER_SIGNS, INNER_SIGN), (inner_capitals, INNER_CAPITAL)]
