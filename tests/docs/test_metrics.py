"""The docs and /metrics name the same metrics."""

import re

from cadenza.observe import Metrics
from cadenza.parts.grounding.metrics import GroundingMetrics
from cadenza.parts.grounding.search.engines import base
from tests.docs.markdown import PAGES, ROOT, code

ENGINES = ROOT / "docs" / "parts" / "grounding" / "search-engines.md"
MONITOR = ROOT / "docs" / "monitor.md"
NAME = re.compile(r"\b(?:cadenza|process)_[a-z_]+\b")


def served_metrics() -> set[str]:
    """The names on /metrics, without the time stamps that the library adds to counters."""
    metrics = Metrics()
    GroundingMetrics(metrics.registry)
    lines = metrics.render().decode()
    return {name for name in re.findall(r"^# TYPE (\w+)", lines, re.MULTILINE) if not name.endswith("_created")}


def test_every_metric_is_documented() -> None:
    """Each metric is named in docs/monitor.md, as it is on /metrics."""
    assert served_metrics() - set(NAME.findall(code(MONITOR))) == set()


def test_every_documented_metric_exists() -> None:
    """Each metric that a page names is on /metrics."""
    named = {name for page in PAGES for name in NAME.findall(code(page))}
    assert named - served_metrics() == set()


def test_every_reason_of_an_engine_is_documented() -> None:
    """The table of reasons has those that an engine may fail with, and the one of a search that is late."""
    assert base.__doc__
    known = set(re.findall(r"^([a-z_]+)  +\S", base.__doc__, re.MULTILINE)) - {"reason"}
    table = ENGINES.read_text().partition("| reason |")[2]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == known | {"late"}
    assert len(known) > 10
