"""The Postgres of the tests of stores."""

from tests.store.conftest import postgres

__all__ = ["postgres"]
