"""Python imports this at its start where the folder is on PYTHONPATH: then no part of Cadenza can be imported."""

import sys
from pathlib import Path

PARTS = Path(__file__).parents[2] / "src" / "cadenza" / "parts"
sys.modules |= {f"cadenza.parts.{path.parent.name}": None for path in PARTS.glob("*/__init__.py")}  # type: ignore[dict-item]
