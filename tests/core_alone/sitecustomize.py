"""Python imports this at its start where the folder is on PYTHONPATH: then no part of Cadenza can be imported."""

import sys
from pathlib import Path
from typing import Any

PARTS = Path(__file__).parents[2] / "src" / "cadenza" / "parts"
modules: dict[str, Any] = sys.modules
modules |= {f"cadenza.parts.{path.parent.name}": None for path in PARTS.glob("*/__init__.py")}
