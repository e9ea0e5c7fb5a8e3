"""A store in SQLite."""

from tests.cli.conftest import made

__all__ = ["made"]
