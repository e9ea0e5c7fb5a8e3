"""API keys: their shape, a checksum that catches slips, and what is kept of them."""

import hashlib
import re
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.core.apikey import ALPHABET, digest_key, display_prefix, is_well_formed, make_key

KEY = "sk-cdz-0000000000000000000000000000000000000000000" + "3ZDYYK"


def test_a_key_has_the_promised_shape() -> None:
    """`sk-cdz-`, 43 characters of secret and 6 of checksum, all of base62, and well formed."""
    key = make_key()
    assert re.fullmatch(r"sk-cdz-[0-9A-Za-z]{43}[0-9A-Za-z]{6}", key)
    assert is_well_formed(key.encode())


def test_a_known_key_is_well_formed() -> None:
    """A key that was made long ago stays a key: the shape and the checksum do not drift."""
    assert is_well_formed(KEY.encode())


def test_keys_differ_everywhere() -> None:
    """Every place of the secret varies (the first within what 256 bits leave it), so all of it is random."""
    columns = list(zip(*(make_key()[len("sk-cdz-") : -6] for _ in range(200)), strict=True))
    assert len(columns) == 43
    assert all(len(set(column)) > 20 for column in columns)


def test_the_checksum_is_crc32_in_base62() -> None:
    """Another program can check a key: CRC-32 of what stands before, most significant digit first."""
    key = make_key()
    number = 0
    for character in key[-6:]:
        number = number * 62 + ALPHABET.index(character)
    assert number == zlib.crc32(key[:-6].encode())


@settings(max_examples=150, deadline=None)
@given(st.integers(0, len(KEY) - 1), st.one_of(st.sampled_from(ALPHABET), st.characters()))
def test_any_one_changed_character_is_caught(place: int, character: str) -> None:
    """A key with one character changed, anywhere and to anything, is not well formed."""
    key = make_key()
    changed = key[:place] + character + key[place + 1 :]
    assert is_well_formed(changed.encode()) == (changed == key)


@settings(max_examples=100, deadline=None)
@given(st.integers(7, len(KEY) - 2))
def test_two_swapped_neighbours_are_caught(place: int) -> None:
    """A key with two neighbours swapped is not well formed, unless they are the same."""
    key = make_key()
    swapped = key[:place] + key[place + 1] + key[place] + key[place + 2 :]
    assert is_well_formed(swapped.encode()) == (swapped == key)


@pytest.mark.parametrize(
    "text", ["", "sk-cdz-", KEY[:-1], KEY + "0", " " + KEY, KEY + "\n", KEY.upper(), KEY.removeprefix("sk-cdz-")]
)
def test_what_has_another_length_or_prefix_is_no_key(text: str) -> None:
    """Too short, too long, padded, or with another prefix: not a key."""
    assert not is_well_formed(text.encode())


@settings(max_examples=100, deadline=None)
@given(st.text())
def test_any_text_can_be_asked_about(text: str) -> None:
    """No text, however odd, makes the check fail instead of saying no."""
    assert not is_well_formed(text.encode())


def test_the_digest_is_sha256() -> None:
    """What is stored of a key is its SHA-256."""
    assert digest_key(KEY.encode()) == hashlib.sha256(KEY.encode()).digest()


def test_twelve_characters_are_for_display() -> None:
    """Of a key, its first 12 characters may be shown: the prefix and 5 of the secret's 43."""
    assert display_prefix(KEY) == "sk-cdz-00000"
