"""The store of the gateway's tests, and visitors of the site."""

from tests.unit.gateway.conftest import funded
from tests.web.conftest import email, operator, other, stranger, visitor

__all__ = ["email", "funded", "operator", "other", "stranger", "visitor"]
