"""The extras of the package: what is not needed is not imported, and what is missing is a sentence that names it."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODULES: dict[str, tuple[str, ...]] = {
    "pages": ("starlette", "jinja2", "markdown_it", "nh3", "pygments", "segno", "webauthn", "cryptography"),
    "postgres": ("asyncpg",),
    "retention": (),
    "valkey": ("hiredis",),
}
WITHOUT = """
import sys
sys.modules |= dict.fromkeys({modules!r})
"""


def run(code: str, *modules: str) -> str:
    """What a program prints in which these modules cannot be imported."""
    found = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(modules=modules) + code], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_every_extra_has_its_modules_here() -> None:
    """The extras of pyproject.toml are those whose absence is tried, and `all` has each of them."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert re.findall(r"\w+", extras.pop("all")[0]) == ["cadenza", *sorted(MODULES)]
    assert extras.keys() - {"embedded", "otel"} == MODULES.keys()


def test_a_gateway_imports_no_extra() -> None:
    """The program and its commands load without the pages, Postgres and Valkey."""
    blocked = [module for modules in MODULES.values() for module in modules]
    assert run("import cadenza.app, cadenza.server.server, cadenza.cli; print('loaded')", *blocked) == "loaded\n"
