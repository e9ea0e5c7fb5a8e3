"""HTTP stands on its own."""

import ast
from pathlib import Path

import cadenza.http

FOLDER = Path(cadenza.http.__file__).parent


def imported(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    return names | {node.module or "." for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}


def test_http_imports_no_other_package_of_ours() -> None:
    """No module of cadenza.http imports another package of cadenza: it knows nothing of keys, money or models."""
    names = {name for path in FOLDER.glob("**/*.py") for name in imported(path)}
    own = {name for name in names if name.partition(".")[0] in ("", "cadenza")}
    assert own
    assert {name for name in own if not name.startswith("cadenza.http.")} == set()
