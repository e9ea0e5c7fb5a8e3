"""A visitor of the ordinary service, signed in or not, and a day that does not end during a test."""

import time
from collections.abc import Iterator

import pytest

from tests.parts.site.web.operators import make_operator
from tests.service import CREDIT_NANO, Service, wait_until
from tests.visitor import Visitor, signed_in

DAY_S = 24 * 60 * 60
TEST_S = 60.0


@pytest.fixture
def far_from_midnight() -> None:
    """Wait for the next day (UTC) in the last minute of one, because usage is counted by days."""
    wait_until(lambda: DAY_S - time.time() % DAY_S > TEST_S, "the next day")


@pytest.fixture
def stranger(service: Service) -> Visitor:
    """Not signed in."""
    return Visitor(service.port)


@pytest.fixture
def email(service: Service) -> str:
    """The address of an account of this test alone."""
    return service.create_account(CREDIT_NANO)


@pytest.fixture
def visitor(service: Service, email: str) -> Visitor:
    """Signed in to the account of this test."""
    return signed_in(service, email)


@pytest.fixture
def operator(service: Service, email: str, visitor: Visitor) -> Visitor:
    """The same, once the account of this test is an operator's."""
    make_operator(service, email)
    return visitor


@pytest.fixture
def other(service: Service) -> str:
    """The address of an account of somebody else."""
    return service.create_account(CREDIT_NANO)


@pytest.fixture
def sound_ledger(service: Service) -> Iterator[None]:
    """After the test the ledger is sound."""
    yield
    service.ledger.check_rules()
