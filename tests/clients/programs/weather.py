"""What every program here has: the service's address, a tool, a schema, and the JSON that it prints.

The programs run in the environments of tests/installed.py, not in that of the tests.
"""

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel

BASE_URL = os.environ["CADENZA_BASE_URL"]
API_KEY = os.environ["CADENZA_API_KEY"]
QUESTION = "Which is warmer, Oslo or Rome?"
DEGREES = {"Oslo": 4, "Rome": 24}


class Report(BaseModel):
    """The schema of a structured answer."""

    city: str
    degrees: int


class Weather:
    """The tool, with a list of its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, str]]] = []

    def get_weather(self, city: str) -> int:
        """The temperature of a city in degrees."""
        self.calls.append(("get_weather", {"city": city}))
        return DEGREES[city]


def tell(*, plain: object, stream: Iterable[Any], calls: Iterable[Any], results: object, report: Report) -> None:
    """Print what the client got: an answer, the pieces of a streamed one, calls, an answer made of their results."""
    told: Mapping[str, object] = {
        "plain": plain,
        "stream": [piece for piece in stream if piece],
        "calls": list(calls),
        "results": results,
        "report": report.model_dump(),
    }
    print(json.dumps(told))  # noqa: T201
