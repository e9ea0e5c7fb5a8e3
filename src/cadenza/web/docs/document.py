"""The OpenAPI document as it is sent. web/docs/openapi.py makes it."""

import gzip
from functools import lru_cache
from typing import Any

import msgspec

BASE_URL = "{base_url}"  # placeholder for the address of the service, as the client reached it
ADDRESSES = 8  # whose compressed documents are kept


class ApiDocument:
    """The document, and its bytes with an address of the service as its server."""

    def __init__(self, value: dict[str, Any]) -> None:
        self.value = value
        self._content = msgspec.json.encode(value)
        self.compressed = lru_cache(ADDRESSES)(self._compressed)

    def content(self, base_url: str) -> bytes:
        return self._content.replace(msgspec.json.encode(BASE_URL), msgspec.json.encode(base_url))

    def _compressed(self, base_url: str) -> bytes:
        return gzip.compress(self.content(base_url), 6, mtime=0)
