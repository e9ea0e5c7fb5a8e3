"""A store, as tests of stores have it."""

from tests.store.conftest import databases, make_url, postgres, store, url

__all__ = ["databases", "make_url", "postgres", "store", "url"]
