"""The environment of the processes that tests start."""

import os

DROPPED = {"CADENZA_CONFIG", "CADENZA_API_KEY", "COLUMNS"}


def environment(**variables: str) -> dict[str, str]:
    """The environment of our processes."""
    kept = {name: value for name, value in os.environ.items() if name not in DROPPED}
    no_proxy = {"NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"}
    return kept | no_proxy | variables
