"""Visitors of the site."""

from tests.web.conftest import email, operator, other, stranger, visitor

__all__ = ["email", "operator", "other", "stranger", "visitor"]
