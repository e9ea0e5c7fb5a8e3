"""The one reader of queries."""

import pytest

from cadenza.core.errors import InvalidRequest
from cadenza.core.query import QUERY_BYTES_MAX, QUERY_FIELDS_MAX, read_query


@pytest.mark.parametrize(
    ("query", "fields"),
    [
        (b"", {}),
        (b"a=1&b=2", {"a": "1", "b": "2"}),
        (b"a=1&a=2", {"a": "2"}),
        (b"a=&b&=c", {"": "c"}),
        (b"a=%C3%BC+b%26c", {"a": "ü b&c"}),
        (b"a=%ff%zz%", {"a": "\ufffd%zz%"}),
        (b"a=1;b=2", {"a": "1;b=2"}),
        (b"a=\xff", {"a": "ÿ"}),
    ],
)
def test_the_fields_of_a_query(query: bytes, fields: dict[str, str]) -> None:
    """Fields are decoded; the last one of a name counts, an empty one counts as absent, and any bytes are read."""
    assert read_query(query) == fields


@pytest.mark.parametrize(("unit", "limit"), [(b"x", QUERY_BYTES_MAX), (b"&", QUERY_FIELDS_MAX - 1)])
def test_a_query_has_limits(unit: bytes, limit: int) -> None:
    """As many bytes and fields as the limits say are read, and one more is refused."""
    read_query(unit * limit)
    with pytest.raises(InvalidRequest, match="Send at most"):
        read_query(unit * (limit + 1))
