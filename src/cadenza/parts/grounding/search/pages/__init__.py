"""Fetches web pages that strangers name, without ever reaching a private address: `fetch.PageFetcher`."""
