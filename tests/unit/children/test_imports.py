"""What a child process loads."""

import subprocess
import sys

import pytest

CHILDREN = (
    "parts.evaluation.check_child",
    "gateway.large.child",
    "parts.grounding.files.child",
    "parts.embedded.child",
    "parts.site.chat.markdown.child",
)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.parts(reason=name) if name.startswith("parts.") else ())
        for name in CHILDREN
    ],
)
def test_a_child_has_no_event_loop(name: str) -> None:
    """A child loads no asyncio, which takes 2 to 7 MB and 10 to 30 ms of CPU time at its start."""
    program = f"import sys, cadenza.{name}; sys.exit('asyncio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
