"""Tests of upstreams run on uvloop, as the service does, or on asyncio's own loop, whose clock a test can move."""

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop

from tests.unit.upstreams.clock import Clock


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A stopped clock, only for tests that are marked to run on asyncio's own loop."""
    return Clock(asyncio.get_running_loop(), monkeypatch, is_stopped=True)
