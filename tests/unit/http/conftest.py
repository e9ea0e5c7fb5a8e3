"""Tests of HTTP run on asyncio's own loop and on uvloop, which the service runs on."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import uvloop

from tests.unit.http.raw_client import RawClient
from tests.unit.http.testing_site import Site
from tests.unit.upstreams.clock import Clock


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A stopped clock, only for tests that are marked to run on asyncio's own loop."""
    return Clock(asyncio.get_running_loop(), monkeypatch, is_stopped=True)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with Site() as running:
        yield running


@pytest.fixture
async def client(site: Site) -> RawClient:
    return await site.connect()
