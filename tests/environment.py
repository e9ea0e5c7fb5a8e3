"""The environment of the processes that tests start."""

import os
from pathlib import Path

INSTALLATION = Path(__file__).parent / "installation"
DROPPED = {"CADENZA_CONFIG", "CADENZA_API_KEY", "COLUMNS"}


def environment(**variables: str) -> dict[str, str]:
    """The environment of our processes, where a module of tests/installation hides one of the same name."""
    kept = {name: value for name, value in os.environ.items() if name not in DROPPED}
    no_proxy = {"NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"}
    path = ":".join(filter(None, [str(INSTALLATION), os.environ.get("PYTHONPATH")]))
    return kept | no_proxy | {"PYTHONPATH": path} | variables
