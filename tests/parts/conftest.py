"""The stores of all parts' tests, and one Postgres for them."""

from tests.store.conftest import databases, make_url, postgres, store, url

__all__ = ["databases", "make_url", "postgres", "store", "url"]
