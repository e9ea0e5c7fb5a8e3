"""The stores of the tests of promotions, and the process of graders."""

from collections.abc import AsyncIterator

import pytest_asyncio

from cadenza.parts.evaluation.graders import Graders
from tests.store.conftest import databases, make_url, postgres, store, url

__all__ = ["databases", "make_url", "postgres", "store", "url"]


@pytest_asyncio.fixture
async def graders() -> AsyncIterator[Graders]:
    async with Graders() as started:
        yield started
