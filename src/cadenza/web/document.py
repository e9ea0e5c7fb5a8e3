"""The OpenAPI document as it is sent. web/openapi.py makes it."""

import gzip
from typing import Any

import msgspec


class ApiDocument(msgspec.Struct, frozen=True):
    """The document, and its bytes as they are sent."""

    value: dict[str, Any]
    content: bytes
    compressed: bytes

    @classmethod
    def of(cls, value: dict[str, Any]) -> "ApiDocument":
        content = msgspec.json.encode(value)
        return cls(value, content, gzip.compress(content, 9, mtime=0))
