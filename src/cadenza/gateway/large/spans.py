"""Finds raw JSON in the body that it came from. Only the child process uses it.

Any place with the same bytes will do, so a repeated field does no harm.
"""

from collections.abc import Iterable, Iterator

import msgspec

from cadenza.gateway.large.messages import Span


class SpanFinder:
    """Gives a span for each piece of JSON. What is not in the body is collected in `extra`."""

    def __init__(self, body: bytearray) -> None:
        self.extra = bytearray()
        self._body = body

    def find(self, raw: msgspec.Raw) -> Span:
        start = self._body.find(raw)
        assert start >= 0, "a raw field is a part of its body"
        return start, start + memoryview(raw).nbytes

    def find_items(self, array: msgspec.Raw, items: Iterable[msgspec.Raw]) -> Iterator[Span]:
        """The spans of the items of an array, in their order: between two there is only a comma and white space."""
        end, _ = self.find(array)
        for item in items:
            start = self._body.find(item, end)
            end = start + memoryview(item).nbytes
            yield start, end

    def add(self, data: bytes | memoryview | msgspec.Raw) -> Span:
        start = len(self._body) + len(self.extra)
        self.extra += memoryview(data)
        return start, len(self._body) + len(self.extra)
