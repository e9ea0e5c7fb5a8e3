"""A visitor of the ordinary service, signed in or not."""

import pytest

from tests.service import CREDIT_NANO, Service
from tests.visitor import Visitor


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
    signed_in = Visitor(service.port)
    signed_in.sign_in(email)
    return signed_in
