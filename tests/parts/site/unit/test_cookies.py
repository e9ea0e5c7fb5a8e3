"""Our cookies in the header of a browser."""

import time

import pytest

from cadenza.parts.site.cookies import DEVICE_COOKIE, SESSION_COOKIE, VALUE_CHARS_MAX, read_cookie

HEADER_CHARS = 1_000_000
HEADER_CPU_S = 0.2  # for 16 times the largest head; http.cookies takes 10 s for 50 kB


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("", ""),
        ("cadenza_session=one", "one"),
        ("a=b; cadenza_session=one; c=d", "one"),
        ("a=b;cadenza_session=one;c=d", "one"),
        ("cadenza_session = one", "one"),
        ("cadenza_session=one; cadenza_session=two", "one"),
        ("cadenza_session=a=b", "a=b"),
        ('cadenza_session="one"', '"one"'),
        ("cadenza_session", ""),
        ("a=cadenza_session=one", ""),
        ("xcadenza_session=one", ""),
        ("__Host-cadenza_session=one", ""),
        ("Cadenza_Session=one", ""),
        ('a="; cadenza_session=one', "one"),
        ("cadenza_session=" + "a" * VALUE_CHARS_MAX, "a" * VALUE_CHARS_MAX),
        ("cadenza_session=" + "a" * (VALUE_CHARS_MAX + 1), ""),
    ],
)
def test_the_value_of_our_cookie(header: str, value: str) -> None:
    """The first cookie of exactly this name counts, as it is written; a value that is too long is not ours."""
    assert read_cookie(header, SESSION_COOKIE) == value


def test_a_cookie_of_devices_fits() -> None:
    """The longest value that the site sets, of four devices, is read."""
    value = ".".join(["d" * 64] * 4)
    assert read_cookie(f"cadenza_session=one; cadenza_device={value}", DEVICE_COOKIE) == value


@pytest.mark.parametrize(
    "unit", [";", " ", "; ", "a=b;", '"\\', "cadenza_session", ";cadenza_session", "cadenza_session=;"]
)
def test_any_header_is_read_in_one_pass(unit: str) -> None:
    """A header of a megabyte takes milliseconds, whatever is repeated in it."""
    header = unit * (HEADER_CHARS // len(unit))
    began_s = time.process_time()
    assert read_cookie(header, SESSION_COOKIE) == ""
    assert time.process_time() - began_s < HEADER_CPU_S
