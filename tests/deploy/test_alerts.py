"""The dashboard and the alert rules are what their table gives, and name metrics and labels that exist."""

import json
import re
from functools import cache

import pytest
from deploy.dashboard import ALERTS, COLUMNS, DASHBOARD, queries_of, read_rows, write_alerts, write_dashboard

from cadenza.observe import Metrics
from cadenza.observe.findings import LATE_SHARES
from cadenza.observe.health import RULES as PROBLEMS
from cadenza.observe.minutes import LATE_S
from cadenza.parts.grounding.metrics import GroundingMetrics
from tests.deploy.files import ROOT, alert_rules

MONITOR = (ROOT / "docs" / "monitor.md").read_text()
ROWS = read_rows()
ALERTS_OF = {alert["problem"]: alert["name"] for row in ROWS for alert in row.get("alerts", ())}
RULES = {rule["alert"]: rule for rule in alert_rules()}
PANELS = {panel["title"]: panel for row in ROWS for panel in row["panels"]}
QUERIES = {f"{title}, {legend}": query for title, one in PANELS.items() for legend, query in queries_of(one).items()}
EXPRESSIONS = {name: rule["expr"] for name, rule in RULES.items()} | QUERIES
NAME = re.compile(r"\b((?:cadenza|process)_[a-z_]+)(?:\{([^}]*)\})?")
GROUPED = re.compile(r"by \(([^)]*)\)")
ROW = re.compile(r"^\| `((?:cadenza|process)_\w+)` \|([^|]*)\|", re.MULTILINE)
LABELS = {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in ROW.findall(MONITOR)}
OF_PROMETHEUS = {"le", "instance"}  # labels of buckets and of targets
NOT_SHOWN = {  # others say the same, or they belong to one person
    "cadenza_route_failing",
    "cadenza_route_last_fault_timestamp_seconds",
    "cadenza_route_resting",
    "process_start_time_seconds",
    "process_virtual_memory_bytes",
}


@cache
def served_types() -> dict[str, str]:
    """The metrics of /metrics, with their types."""
    metrics = Metrics()
    GroundingMetrics(metrics.registry)
    found = re.findall(r"^# TYPE (\w+) (\w+)", metrics.render().decode(), re.MULTILINE)
    return {name: kind for name, kind in found if not name.endswith("_created")}


def metrics_of(expression: str) -> list[tuple[str, set[str]]]:
    """The metrics in an expression, by the names in the docs, each with the labels that it is selected by."""
    return [
        (re.sub("_(bucket|sum|count)$", "", name), set(re.findall(r"(\w+)=", selectors or "")))
        for name, selectors in NAME.findall(expression)
    ]


def test_the_files_are_what_the_table_gives() -> None:
    """If this fails, run deploy/dashboard.py."""
    assert DASHBOARD.read_text() == write_dashboard(ROWS)
    assert ALERTS.read_text() == write_alerts(ROWS)


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_metrics_and_labels_exist(name: str) -> None:
    """Every metric of a rule or a panel is on /metrics, and has the labels that it uses."""
    expression = EXPRESSIONS[name]
    found = metrics_of(expression)
    assert found or expression.startswith("up{")
    for metric, labels in found:
        assert metric in served_types()
        assert labels <= LABELS[metric]
        grouped = {label.strip() for group in GROUPED.findall(expression) for label in group.split(",")}
        assert grouped - OF_PROMETHEUS <= LABELS[metric]


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_counters_are_used_by_their_rate(name: str) -> None:
    """A counter is inside rate() or increase(), a gauge is not, and a histogram is used by its series."""
    expression = EXPRESSIONS[name]
    for metric, _ in metrics_of(expression):
        in_rate = bool(re.search(rf"(?:rate|increase)\({metric}", expression))
        assert in_rate == (served_types()[metric] != "gauge")
        assert bool(re.search(rf"{metric}_(bucket|sum|count)\b", expression)) == (served_types()[metric] == "histogram")


@pytest.mark.parametrize("name", RULES)
def test_rule_is_complete(name: str) -> None:
    """A rule says how urgent it is and what is wrong; its brackets close."""
    rule = RULES[name]
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in {"page", "ticket"}
    assert rule["annotations"]["summary"].endswith(".")
    for opening, closing in ("()", "[]", "{}"):
        assert rule["expr"].count(opening) == rule["expr"].count(closing)


def test_an_alert_says_what_its_problem_says() -> None:
    """Severity, summary and description are those of the program's table, and a problem has at most one alert."""
    assert len(set(ALERTS_OF.values())) == len(ALERTS_OF) == len(RULES)
    for kind, name in ALERTS_OF.items():
        rule, problem = RULES[name], PROBLEMS[kind]
        assert rule["labels"]["severity"] == problem.severity
        assert rule["annotations"] == {"summary": problem.title, "description": problem.advice}


def test_an_alert_has_the_bounds_of_its_problem() -> None:
    """Alert and live view call the same part of the same histogram late."""
    quantiles = re.compile(r"histogram_quantile\(([0-9.]+), .*\((\w+)_bucket.*> ([0-9.]+)$")
    found = {
        name: (float(part), float(bound))
        for it in RULES.values()
        for part, name, bound in quantiles.findall(it["expr"])
    }
    assert found == {name: (1 - share, LATE_S[name]) for name, share in LATE_SHARES.items()}


def test_the_docs_have_the_table_of_problems() -> None:
    """Each problem is one line of docs/monitor.md, in the words of the program, with its alert."""
    lines = [
        f"| `{one.kind}` | {one.severity} | {one.title} | {one.advice} | {f'`{name}`' if name else '–'} |"
        for one in PROBLEMS.values()
        for name in [ALERTS_OF.get(one.kind)]
    ]
    table = MONITOR.partition("| problem | severity |")[2].partition("\n\n")[0]
    assert table.splitlines()[2:] == lines


def test_every_metric_is_in_the_dashboard() -> None:
    """Each metric is in a panel or in an alert, but for a few that say the same as others."""
    used = {metric for expression in EXPRESSIONS.values() for metric, _ in metrics_of(expression)}
    assert set(served_types()) - used == NOT_SHOWN


def test_every_panel_says_what_to_do() -> None:
    """A panel has a title of its own, a unit, and a sentence; a legend names labels that the query keeps."""
    assert len(PANELS) == sum(len(row["panels"]) for row in ROWS)
    for panel in PANELS.values():
        assert panel["text"].endswith(".")
        assert panel["unit"] in {"short", "s", "bytes", "reqps", "percent", "percentunit", "currencyUSD"}
        for legend, query in queries_of(panel).items():
            kept = {label.strip() for group in GROUPED.findall(query) for label in group.split(",")}
            assert set(re.findall(r"{{(\w+)}}", legend)) <= kept | {"instance"}


def test_panels_do_not_overlap() -> None:
    """Each panel has an id and a place of its own, within the columns of Grafana."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [panel["gridPos"] for panel in panels]
    cells = [
        (x, y)
        for one in places
        for x in range(one["x"], one["x"] + one["w"])
        for y in range(one["y"], one["y"] + one["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < COLUMNS
