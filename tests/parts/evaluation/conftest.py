"""The process of graders."""

from collections.abc import AsyncIterator

import pytest_asyncio

from cadenza.parts.evaluation.graders import Graders


@pytest_asyncio.fixture
async def graders() -> AsyncIterator[Graders]:
    async with Graders() as started:
        yield started
