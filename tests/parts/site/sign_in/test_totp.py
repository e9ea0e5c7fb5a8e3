"""Codes of an authenticator app, as RFC 6238 has them."""

import pytest

from cadenza.parts.site.sign_in.second_factor import STEP_S, code_at, matching_step, totp_uri, written_secret

RFC_SECRET = b"12345678901234567890"


@pytest.mark.parametrize(
    ("at_s", "code"), [(59, "287082"), (1_111_111_109, "081804"), (1_234_567_890, "005924"), (20_000_000_000, "353130")]
)
def test_codes_are_those_of_the_rfc(at_s: int, code: str) -> None:
    """The last six digits of the published test values come out."""
    assert code_at(RFC_SECRET, at_s // STEP_S) == code


@pytest.mark.parametrize(("drift", "is_accepted"), [(-2, False), (-1, True), (0, True), (1, True), (2, False)])
def test_one_step_of_drift_is_accepted(drift: int, is_accepted: bool) -> None:
    """A clock may be one step early or late, and no more."""
    step = 40_000_000
    found = matching_step(RFC_SECRET, code_at(RFC_SECRET, step + drift), step * STEP_S * 1000)
    assert found == (step + drift if is_accepted else None)


@pytest.mark.parametrize("code", ["", "1234567", "٣٤٥٦٧٨", "abcdef"])
def test_what_is_no_code_matches_nothing(code: str) -> None:
    """Letters, other digits and other lengths are wrong codes."""
    assert matching_step(RFC_SECRET, code, 59_000) is None


def test_the_secret_can_be_scanned_and_typed() -> None:
    """The address names the site and the account; the text has groups of four letters."""
    assert totp_uri(RFC_SECRET, "a+b@example.org") == (
        "otpauth://totp/Cadenza:a%2Bb@example.org?secret=GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ&issuer=Cadenza"
    )
    assert written_secret(RFC_SECRET).split() == ["GEZD", "GNBV", "GY3T", "QOJQ"] * 2
