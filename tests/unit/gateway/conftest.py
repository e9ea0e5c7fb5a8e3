"""The store that most tests of the gateway need."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.gateway.billing import SMALL_NANO, Billing
from tests.unit.gateway.funded_store import FUNDED_NANO, FundedStore, open_funded_store


@pytest.fixture
def protocol() -> str:
    """Of a chat. A part that has others runs tests of this folder with its own."""
    return "chat"


@pytest.fixture
async def funded(tmp_path: Path) -> AsyncIterator[FundedStore]:
    """An account with much credit."""
    async with open_funded_store(tmp_path, FUNDED_NANO) as opened:
        yield opened


@pytest.fixture
async def billing(tmp_path: Path) -> AsyncIterator[Billing]:
    """An account with little credit, and a running ledger."""
    async with open_funded_store(tmp_path, SMALL_NANO) as opened, opened.writer() as ledger:
        yield Billing(opened, ledger)
