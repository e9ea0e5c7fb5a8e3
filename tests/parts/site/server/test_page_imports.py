"""A service without visitors does not import the site."""

import subprocess
import sys

IMPORT_S = 120.0
SITE = ("aiosmtplib", "cadenza.parts.site.application", "jinja2", "markdown_it", "nh3", "starlette", "webauthn")


def test_a_start_imports_no_page() -> None:
    """The modules of the service do not import the pages, nor the libraries that only the pages need."""
    program = f"import cadenza.cli.start, sys; print([name for name in {SITE} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=IMPORT_S, check=True)
    assert done.stdout.strip() == "[]"
