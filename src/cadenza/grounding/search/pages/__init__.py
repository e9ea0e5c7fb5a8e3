"""Fetches web pages that strangers name, without ever reaching a private address: `fetch` is the face of it."""
