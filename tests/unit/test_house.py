"""The rules of the house that no linter knows: claims of tests, and the size of files."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE_LINES_MAX = 400


def find_tests(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            yield node


def states_its_claim(test: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    docstring = ast.get_docstring(test, clean=False)
    return docstring is not None and bool(docstring.strip()) and "\n" not in docstring


def test_every_test_states_its_claim_in_one_line() -> None:
    """Every test function of every test file has a docstring of one line."""
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    assert Path(__file__) in paths
    silent = [
        f"{path.relative_to(ROOT)}:{test.lineno} {test.name}"
        for path in paths
        for test in find_tests(path)
        if not states_its_claim(test)
    ]
    assert silent == []


def test_no_source_file_is_too_long() -> None:
    """A file of the source that nobody would want to read is cut in two."""
    lines = {path: len(path.read_text().splitlines()) for path in (ROOT / "src" / "cadenza").rglob("*.py")}
    assert lines
    assert {str(path): count for path, count in lines.items() if count > SOURCE_LINES_MAX} == {}
