"""The request header that turns memory and search off."""

import pytest

from cadenza.core.errors import InvalidRequest
from cadenza.grounding.wanted import is_turned_off
from cadenza.http.exchange import Request

NAME = b"x-cadenza-grounding"


def request_with(*values: bytes) -> Request:
    return Request("POST", "/v1/chat/completions", b"", [(NAME, value) for value in values])


@pytest.mark.parametrize("values", [(b"none",), (b" NONE\t",), (b"none, none",), (b"none", b"None"), (b"", b"none")])
def test_none_turns_it_off(values: tuple[bytes, ...]) -> None:
    """In any case, with blanks, and as often as a client or a proxy says it."""
    assert is_turned_off(request_with(*values))


@pytest.mark.parametrize("values", [(), (b"",), (b" ",), (b"", b",")])
def test_an_empty_value_is_no_value(values: tuple[bytes, ...]) -> None:
    """As if the header were not there."""
    assert not is_turned_off(request_with(*values))


@pytest.mark.parametrize(
    "values", [(b"off",), (b"none,x",), (b"search",), (b"false",), (b"none=1",), (b"none", b"off"), (b"\xff",)]
)
def test_any_other_value_is_refused(values: tuple[bytes, ...]) -> None:
    """A typing error must not leave memory and search on: the 400 says which value there is."""
    with pytest.raises(InvalidRequest, match=r"x-cadenza-grounding: the only value .* `none`"):
        is_turned_off(request_with(*values))
