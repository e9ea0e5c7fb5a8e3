"""The Postgres of the tests of stores, and their databases in it; and a store in SQLite."""

from tests.cli.conftest import made
from tests.store.conftest import databases, empty, make_url, postgres, store, url

__all__ = ["databases", "empty", "made", "make_url", "postgres", "store", "url"]
