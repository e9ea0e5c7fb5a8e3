"""Which configs need parts that can be left out."""

import re
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from cadenza import parts

TABLE = re.compile(r"^(?:\| )?\[+([a-z_]+)", re.MULTILINE)
WORDS = ('kind = "embedded"', "smollm2", "CADENZA_SECRET_KEY")


def case(config: str, *others: Any, id: str | None = None) -> ParameterSet:  # noqa: A002 pytest's own name
    """A case of a test, marked if the config has a table of a part, or a word that only a part knows."""
    needs_part = any(word in config for word in WORDS) or any(parts.find(f"[{one}]") for one in TABLE.findall(config))
    return pytest.param(config, *others, id=id, marks=pytest.mark.parts(reason="its tables") if needs_part else ())
