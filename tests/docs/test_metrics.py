"""The docs and /metrics name the same metrics."""

import re

from cadenza.observe import Metrics
from tests.docs.markdown import PAGES, ROOT, code

OPERATING = ROOT / "docs" / "operating.md"
NAME = re.compile(r"\bcadenza_[a-z_]+\b")


def served_metrics() -> set[str]:
    """The names on /metrics, without the time stamps that the library adds to counters."""
    lines = Metrics().render().decode()
    return {name for name in re.findall(r"^# TYPE (\w+)", lines, re.MULTILINE) if not name.endswith("_created")}


def test_every_metric_is_documented() -> None:
    """Each metric is named in the docs of operating, as it is on /metrics."""
    assert served_metrics() - set(NAME.findall(code(OPERATING))) == set()


def test_every_documented_metric_exists() -> None:
    """Each metric that a page names is on /metrics."""
    named = {name for page in PAGES for name in NAME.findall(code(page))}
    assert named - served_metrics() == set()
