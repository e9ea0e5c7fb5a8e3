"""The alert rules name metrics and labels that exist."""

import re

import pytest

from cadenza.observe import Metrics
from tests.deploy.files import ROOT, alert_rules

OPERATING = (ROOT / "docs" / "operating.md").read_text()
RULES = {rule["alert"]: rule for rule in alert_rules()}
NAME = re.compile(r"\b(cadenza_[a-z_]+)(?:\{([^}]*)\})?")
GROUPED = re.compile(r"by \(([^)]*)\)")
ROW = re.compile(r"^\| `(cadenza_\w+)` \|([^|]*)\|", re.MULTILINE)
LABELS = {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in ROW.findall(OPERATING)}


def served_types() -> dict[str, str]:
    """The metrics of /metrics, with their types."""
    return dict(re.findall(r"^# TYPE (\w+) (\w+)", Metrics().render().decode(), re.MULTILINE))


def metrics_of(expression: str) -> list[tuple[str, set[str]]]:
    """The metrics in an expression, by the names in the docs, each with the labels that it is selected by."""
    return [
        (name.removesuffix("_bucket"), set(re.findall(r"(\w+)=", selectors or "")))
        for name, selectors in NAME.findall(expression)
    ]


@pytest.mark.parametrize("name", RULES)
def test_metrics_and_labels_exist(name: str) -> None:
    """Every metric of a rule is on /metrics, and has the labels that the rule uses."""
    expression = RULES[name]["expr"]
    found = metrics_of(expression)
    assert found or expression.startswith("up{")
    for metric, labels in found:
        assert metric in served_types()
        assert labels <= LABELS[metric]
        grouped = {label.strip() for group in GROUPED.findall(expression) for label in group.split(",")}
        assert grouped - {"le"} <= LABELS[metric]


@pytest.mark.parametrize("name", RULES)
def test_counters_are_used_by_their_rate(name: str) -> None:
    """A counter is inside rate() or increase(), a gauge is not, and a histogram is used by its buckets."""
    expression = RULES[name]["expr"]
    for metric, _ in metrics_of(expression):
        in_rate = bool(re.search(rf"(?:rate|increase)\({metric}", expression))
        assert in_rate == (served_types()[metric] != "gauge")
        assert (f"{metric}_bucket" in expression) == (served_types()[metric] == "histogram")


@pytest.mark.parametrize("name", RULES)
def test_rule_is_complete(name: str) -> None:
    """A rule says how urgent it is and what is wrong; its brackets close."""
    rule = RULES[name]
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in {"page", "ticket"}
    assert rule["annotations"]["summary"].endswith(".")
    for opening, closing in ("()", "[]", "{}"):
        assert rule["expr"].count(opening) == rule["expr"].count(closing)


def test_every_alert_is_in_the_docs() -> None:
    """The docs say what to do for each alert, and name no other."""
    assert set(re.findall(r"`(Cadenza[A-Z]\w+)`", OPERATING)) == set(RULES)
