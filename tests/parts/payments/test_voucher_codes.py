"""Codes of vouchers: their shape, and what may be typed."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.parts.payments.voucher_codes import ALPHABET, make_code, normal_code


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


@given(st.text(max_size=200))
def test_any_text_can_be_typed(typed: str) -> None:
    """Whatever is typed is a code in its normal form, or none."""
    code = normal_code(typed)
    assert code is None or normal_code(code) == code
