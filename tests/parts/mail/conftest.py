"""The stores of the tests of notices, and the event loop."""

from tests.store.conftest import databases, make_url, postgres, store, url
from tests.unit.upstreams.clock import clock, pytest_asyncio_loop_factories

__all__ = ["clock", "databases", "make_url", "postgres", "pytest_asyncio_loop_factories", "store", "url"]
