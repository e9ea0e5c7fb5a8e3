"""Random ids: their length, their characters, and that none comes twice."""

import re

from cadenza.core.ids import random_id


def test_an_id_needs_no_escape_in_a_url() -> None:
    """Every id has 24 characters, and only those that a URL takes as they are."""
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{24}", random_id()) for _ in range(2_000))


def test_no_id_comes_twice() -> None:
    """An id has 144 random bits, so thousands of them all differ."""
    assert len({random_id() for _ in range(10_000)}) == 10_000
