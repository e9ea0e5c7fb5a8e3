"""The stores of the tests of months, and the databases of Postgres."""

from tests.store.conftest import databases, make_url, postgres, store, url

__all__ = ["databases", "make_url", "postgres", "store", "url"]
