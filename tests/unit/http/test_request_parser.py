"""What the parser of a connection keeps: nothing that a stream of hours would have to hold."""

import gc
import weakref
from collections.abc import Iterator

import httptools
import pytest

from cadenza.http.exchange import Request
from cadenza.http.request_parser import RequestParser

POST = b"POST /long/target HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\nhi"
GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


class Receiver:
    """Takes requests, and does nothing with them."""

    def receive_head(self, request: Request, whole: bytes = b"", /) -> None: ...

    def receive_body(self, data: bytes, /) -> None: ...

    def receive_end(self) -> None: ...


@pytest.fixture
def _no_collections() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def kept(parser: RequestParser) -> list[object]:
    """What the parser refers to itself."""
    return [
        one for found in gc.get_referents(parser) for one in (found, *(found.values() if type(found) is dict else ()))
    ]


def test_a_request_with_a_body_leaves_no_parser() -> None:
    """A stream may stay open for long: neither httptools' parser nor the target is kept meanwhile."""
    parser = RequestParser(Receiver(), 1000)
    for _ in range(2):
        assert not any(isinstance(one, httptools.HttpRequestParser) or one == b"/long/target" for one in kept(parser))
        parser.read(POST)


@pytest.mark.usefixtures("_no_collections")
def test_a_closed_parser_is_freed_at_once() -> None:
    """It is not left to the garbage collector, which may run much later."""
    parser = RequestParser(Receiver(), 1000)
    parser.read(GET)
    parser.close()
    freed = weakref.ref(parser)
    del parser
    assert freed() is None
