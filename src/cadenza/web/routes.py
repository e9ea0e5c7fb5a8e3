"""How a module of the site lists what it serves: pages, and endpoints of /platform/api.

A page is a function of the visit that returns a response. An endpoint is a function of the visit, and of the decoded
body if it takes one, that returns a record; the record becomes JSON. The OpenAPI document is made from the table.
"""

from collections.abc import Awaitable, Callable
from enum import Enum, auto
from typing import Any

import msgspec
from starlette.responses import Response

from cadenza.web.visit import Visit


class Access(Enum):
    """Who may use a page or an endpoint."""

    ANYONE = auto()
    ACCOUNT = auto()  # signed in
    OPERATOR = auto()


class Page(msgspec.Struct, frozen=True):
    """A page, or a form that a page sends. A path may have parameters: /keys/{key_id}."""

    method: str
    path: str
    serve: Callable[[Visit], Awaitable[Response]]
    access: Access = Access.ACCOUNT


class Endpoint(msgspec.Struct, frozen=True):
    """An endpoint of /platform/api."""

    method: str
    path: str  # below /platform/api
    summary: str
    serve: Callable[..., Awaitable[Any]]
    takes: type | None = None
    returns: Any = None
    access: Access = Access.ACCOUNT
    query: type[msgspec.Struct] | None = None  # its parameters, which `Visit.query` reads
    media_type: str = "application/json"  # of the reply; another one is described without a schema


Routes = tuple[Page | Endpoint, ...]


def get(path: str, serve: Callable[[Visit], Awaitable[Response]], access: Access = Access.ACCOUNT) -> Page:
    return Page("GET", path, serve, access)


def post(path: str, serve: Callable[[Visit], Awaitable[Response]], access: Access = Access.ACCOUNT) -> Page:
    return Page("POST", path, serve, access)
