"""A host with several addresses."""

import pytest

from cadenza.parts.valkey.connection import ValkeyAddress, ValkeyConnection
from tests.unit.http.addresses import PATIENT_S, reaches_the_second_address
from tests.unit.upstreams.clock import Clock, clock, pytest_asyncio_loop_factories

__all__ = ["clock", "pytest_asyncio_loop_factories"]


async def test_a_silent_address_is_passed_over(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Valkey at a host with a silent address is reached at its next one in under half a second."""
    await reaches_the_second_address(
        clock, monkeypatch, lambda port: ValkeyConnection(PATIENT_S).open(ValkeyAddress("host", port), PATIENT_S)
    )
