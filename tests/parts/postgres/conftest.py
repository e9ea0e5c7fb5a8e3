"""The Postgres of the tests of stores, and their databases in it."""

from tests.store.conftest import databases, empty, make_url, postgres, store, url

__all__ = ["databases", "empty", "make_url", "postgres", "store", "url"]
