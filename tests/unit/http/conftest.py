"""A site on a free port, a client of it, and the event loop of these tests."""

from collections.abc import AsyncIterator

import pytest

from tests.unit.http.raw_client import RawClient
from tests.unit.http.testing_site import Site
from tests.unit.upstreams.clock import clock, pytest_asyncio_loop_factories

__all__ = ["clock", "pytest_asyncio_loop_factories"]


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with Site() as running:
        yield running


@pytest.fixture
async def client(site: Site) -> RawClient:
    return await site.connect()
