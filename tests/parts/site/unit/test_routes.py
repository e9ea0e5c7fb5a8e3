"""What a module of the site declares: who may use it, what it takes and returns, and the records of replies."""

from typing import Literal

import msgspec
import pytest
from starlette.responses import Response

from cadenza.core.public import to_record
from cadenza.parts.site.routes import Access, endpoint, form, get
from cadenza.parts.site.visit import Visit


class Source(msgspec.Struct, frozen=True):
    """A record of the control plane."""

    name: str
    price_nano: int
    created_at: int
    ended_at: int | None


class Shown(msgspec.Struct, frozen=True):
    """The record of a reply."""

    name: str
    price: str
    created_at: str
    ended_at: str | None
    is_new: bool
    object: Literal["thing"] = "thing"


class Given(msgspec.Struct, frozen=True):
    """A body."""

    text: str


async def page(_visit: Visit) -> Response:
    return Response()


async def act(_visit: Visit, _given: Given) -> Shown:
    raise NotImplementedError


def test_everything_below_operator_is_for_operators() -> None:
    """Without being told, pages, forms and endpoints below /operator are for operators, and others for an account."""
    for path, access in (("/operator", Access.OPERATOR), ("/operator/a", Access.OPERATOR), ("/a", Access.ACCOUNT)):
        routes = (get(path, page), form(path, act, path), endpoint("POST", path, "Act", act))
        assert [one.access for one in routes] == [access] * 3


def test_an_endpoint_is_described_by_its_function() -> None:
    """What it takes and returns is read from the annotations; a bare response is not a record."""
    assert (endpoint("POST", "/a", "Act", act).takes, endpoint("POST", "/a", "Act", act).returns) == (Given, Shown)
    assert (endpoint("GET", "/a", "Show", page).takes, endpoint("GET", "/a", "Show", page).returns) == (None, None)


def test_a_record_is_made_by_name() -> None:
    """Times become RFC 3339 and amounts dollars; given fields and defaults need no source."""
    made = to_record(Shown, Source("a", 1_500_000_000, 0, None), is_new=True)
    assert made == Shown("a", "1.50", "1970-01-01T00:00:00Z", None, is_new=True)


def test_a_record_is_complete() -> None:
    """A field that neither the source nor the caller has is a bug, and is not left out silently."""
    with pytest.raises(TypeError, match="is_new"):
        to_record(Shown, Source("a", 0, 0, None))
