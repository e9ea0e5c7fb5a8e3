"""Passwords that are refused because they are tried first."""

import pytest
from argon2 import PasswordHasher
from zxcvbn.frequency_lists import FREQUENCY_LISTS

from cadenza.core.errors import ControlError
from cadenza.parts.site.sign_in.passwords import DECOY, FILE, PasswordWork, clean_password, is_common, pack
from tests.passwords import cheap_hash

EMAIL = "jane.owner@example.org"


def test_an_unknown_address_costs_as_much_as_a_known_one() -> None:
    """The hash that is checked in its place has the parameters of every other one."""
    assert not PasswordHasher().check_needs_rehash(DECOY)


@pytest.mark.parametrize("stored", [None, ""])
async def test_the_password_of_the_decoy_opens_no_account(stored: str | None) -> None:
    """An unknown address, and an account whose hash is empty, are refused also with that password."""
    work = PasswordWork(decoy=cheap_hash("of the decoy"))
    assert not await work.matches(stored, "of the decoy")
    assert not await work.matches(stored, "")
    assert await work.matches(cheap_hash("of the decoy"), "of the decoy")


def test_the_file_is_made_of_the_published_list() -> None:
    """It has every password of the list, and nothing else."""
    assert FILE.read_bytes() == pack(FREQUENCY_LISTS["passwords"])


@pytest.mark.parametrize("password", ["password", "12345678", "PassWord", "qwertyuiop", "baseball", "1qaz2wsx"])
def test_a_common_password_is_refused(password: str) -> None:
    """Its case does not matter."""
    assert is_common(password)
    with pytest.raises(ControlError, match="most common"):
        clean_password(password, EMAIL)


@pytest.mark.parametrize(
    "password",
    [
        *("passwordpassword", "summerwinter", "SummerWinter2024", "summer-winter!", "abc123abc123", "baseball1!"),
        *("aaaaaaaaaaaa", "AaAaAaAaA", "........", "88888888"),
    ],
)
def test_a_weak_password_is_refused(password: str) -> None:
    """One character again and again, or one or two common words with a few digits or signs."""
    with pytest.raises(ControlError, match="most common"):
        clean_password(password, EMAIL)


@pytest.mark.parametrize(
    "password",
    [EMAIL, EMAIL.upper(), "jane.owner", "Jane.Owner2024!", " jane.owner ", "example.org", "99 jane.owner@example.org"],
)
def test_the_address_is_no_password(password: str) -> None:
    """Neither whole nor one side of it, also with digits and signs around it."""
    with pytest.raises(ControlError, match="e-mail address"):
        clean_password(password, EMAIL)


@pytest.mark.parametrize(
    "password",
    [
        *("correct horse", "summer of winter", "horse82736451", "summer" * 170, "jane.owner likes tea", "xjane.owner"),
        "\udc80 a surrogate",
    ],
)
def test_other_passwords_are_not_common(password: str) -> None:
    """A longer text that has the name in it is a password, and any text can be asked about."""
    assert not is_common(password)
    if password.isprintable():
        assert clean_password(password, EMAIL) == password.encode()


def test_an_address_of_digits_refuses_only_itself() -> None:
    """What is left of an address without its digits and signs may be nothing."""
    with pytest.raises(ControlError, match="e-mail address"):
        clean_password("82736451", "82736451@example.org")
    assert clean_password("73645182", "82736451@example.org")
