"""API keys and random ids: their shape, the checksum of keys, digests and prefixes."""

import re
import zlib

from hypothesis import given
from hypothesis import strategies as st

from cadenza.core.codes import (
    KEY_ALPHABET,
    is_well_formed,
    make_key,
    random_id,
)

KEY = "sk-cdz-0000000000000000000000000000000000000000000" + "3ZDYYK"


def test_a_key_has_the_documented_shape() -> None:
    """`sk-cdz-`, 43 characters of secret and 6 of checksum, all base62."""
    key = make_key()
    assert re.fullmatch(r"sk-cdz-[0-9A-Za-z]{43}[0-9A-Za-z]{6}", key)
    assert is_well_formed(key.encode())


def test_a_known_key_is_well_formed() -> None:
    """Keys of earlier versions stay valid: the shape and the checksum do not change."""
    assert is_well_formed(KEY.encode())


def test_all_of_the_secret_is_random() -> None:
    """Every character of the secret varies, the first one within what 256 bits leave for it."""
    columns = list(zip(*(make_key()[len("sk-cdz-") : -6] for _ in range(200)), strict=True))
    assert len(columns) == 43
    assert all(len(set(column)) > 20 for column in columns)


def test_the_checksum_is_crc32_in_base62() -> None:
    """Another program can check a key: the CRC-32 of all before it, most significant digit first."""
    key = make_key()
    number = 0
    for character in key[-6:]:
        number = number * 62 + KEY_ALPHABET.index(character)
    assert number == zlib.crc32(key[:-6].encode())


@given(st.integers(0, len(KEY) - 1), st.one_of(st.sampled_from(KEY_ALPHABET), st.characters()))
def test_a_changed_character_is_detected(place: int, character: str) -> None:
    """A key with any one character changed to any other is not well formed."""
    key = make_key()
    changed = key[:place] + character + key[place + 1 :]
    assert is_well_formed(changed.encode()) == (changed == key)


def test_no_id_comes_twice() -> None:
    """An id has 144 random bits, so thousands of them all differ."""
    assert len({random_id() for _ in range(10_000)}) == 10_000
