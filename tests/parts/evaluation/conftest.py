"""The stores of the tests of promotions."""

from tests.store.conftest import databases, make_url, postgres, store, url

__all__ = ["databases", "make_url", "postgres", "store", "url"]
