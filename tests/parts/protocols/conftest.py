"""The gateway with this part's endpoints, and its protocols instead of the chat's for tests of the core."""

import pytest

from cadenza.parts.protocols.run import ENDPOINTS, INSTEAD
from tests.contract.conftest import account, api, api_as, client
from tests.fault.conftest import deploy
from tests.unit.gateway.client import Client
from tests.unit.gateway.conftest import funded

__all__ = ["account", "api", "api_as", "client", "deploy", "funded"]


@pytest.fixture(autouse=True)
def endpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Client, "added", (ENDPOINTS, INSTEAD))


@pytest.fixture(params=["responses", "messages"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[("responses", "messages"), ("messages", "responses")])
def protocols(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param  # type: ignore[no-any-return]
