"""The codes of vouchers."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.core.voucher_code import ALPHABET, code_prefix, digest_code, make_code, normal_code


def test_code_has_100_random_bits() -> None:
    """A code has five groups of four characters, out of 32, and no two codes are alike."""
    codes = {make_code() for _ in range(1000)}
    assert len(codes) == 1000
    assert all(re.fullmatch(f"CDZ(-[{ALPHABET}]{{4}}){{5}}", code) for code in codes)
    assert len(set(ALPHABET)) == 32


@pytest.mark.parametrize(
    "typed",
    [
        "CDZ-01AB-CDEF-GHJK-MNPQ-RSTV",
        "cdz-01ab-cdef-ghjk-mnpq-rstv",
        "  CDZ 01AB CDEF GHJK MNPQ RSTV ",
        "01ABCDEFGHJKMNPQRSTV",
        "CDZ-OIab-cdef-ghjk-mnpq-rstv",
        "CDZ–olAB–CDEF–GHJK–MNPQ–RSTV",
    ],
)
def test_typing_is_forgiven(typed: str) -> None:
    """Case, dashes, spaces and letters that look like digits do not matter."""
    assert normal_code(typed) == "CDZ-01AB-CDEF-GHJK-MNPQ-RSTV"


@pytest.mark.parametrize("typed", ["", "CDZ", "CDZ-01AB-CDEF-GHJK-MNPQ", "CDZ-UUUU-CDEF-GHJK-MNPQ-RSTV", "٣" * 20])
def test_other_text_is_no_code(typed: str) -> None:
    """Text of another length, or with other letters, is not a code."""
    assert normal_code(typed) is None


@given(st.text(max_size=200))
def test_any_text_can_be_typed(typed: str) -> None:
    """Whatever is typed is a code in its normal form, or none."""
    code = normal_code(typed)
    assert code is None or normal_code(code) == code


def test_prefix_hides_80_bits() -> None:
    """The prefix is the first group; the digest is of the whole code."""
    code = make_code()
    assert code_prefix(code) == code[:8]
    assert digest_code(code) != digest_code(code[:-1] + ("0" if code[-1] != "0" else "1"))
