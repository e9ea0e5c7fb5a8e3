"""A store of SQLite."""

from tests.unit.control.conftest import store

__all__ = ["store"]
