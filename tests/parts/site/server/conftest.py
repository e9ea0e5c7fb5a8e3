"""The event loop of these tests: uvloop, as in the service."""

from tests.unit.upstreams.clock import pytest_asyncio_loop_factories

__all__ = ["pytest_asyncio_loop_factories"]
