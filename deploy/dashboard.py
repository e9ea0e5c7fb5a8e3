"""Writes deploy/grafana/cadenza.json and deploy/alerts.yaml from the table of panels and alerts, deploy/dashboard.toml.

The tests prove that both files are what the table gives, that a real Prometheus answers every query, and that each
alert fires in its outage and in no other.
"""

import json
import tomllib
from pathlib import Path
from typing import Any

from cadenza.observe.health import RULES

FOLDER = Path(__file__).parent
TABLE = FOLDER / "dashboard.toml"
DASHBOARD = FOLDER / "grafana" / "cadenza.json"
ALERTS = FOLDER / "alerts.yaml"
ALERTS_HEAD = """\
# Alert rules for Prometheus, which scrapes each gateway's /metrics as the job "cadenza".
# severity: page means that clients fail or money is at stake now; ticket means this week.
# Expressions are from dashboard.toml, severities and texts from the program's table of problems. Run dashboard.py.
groups:
  - name: cadenza
    rules:
"""
COLUMNS, PANEL_HEIGHT = 24, 8
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
STATES = {"closed": "green", "half-open": "yellow", "open": "red"}  # of a circuit, by their values 0, 1 and 2

Table = dict[str, Any]


def main() -> None:
    rows = read_rows()
    DASHBOARD.write_text(write_dashboard(rows))
    ALERTS.write_text(write_alerts(rows))


def read_rows() -> list[Table]:
    rows: list[Table] = tomllib.loads(TABLE.read_text())["rows"]
    return rows


def write_dashboard(rows: list[Table]) -> str:
    """The dashboard as Grafana imports it."""
    variable = {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    dashboard: Table = {
        "id": None,
        "uid": "cadenza",
        "title": "Cadenza",
        "tags": ["cadenza"],
        "timezone": "browser",
        "editable": True,
        "graphTooltip": 1,
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "30s",
        "schemaVersion": 39,
        "version": 1,
        "templating": {"list": [variable]},
        "annotations": {"list": []},
        "links": [],
        "panels": _place_panels(rows),
    }
    return json.dumps(dashboard, indent=2) + "\n"


def queries_of(panel: Table) -> dict[str, str]:
    """The queries of a panel by their legend."""
    given: dict[str, str] = panel.get("queries", {})
    if "quantiles" not in panel:
        return given
    label = panel.get("by")
    by, legend = (f"le, {label}", f"{{{{{label}}}}} ") if label else ("le", "")
    buckets = f"sum by ({by}) (rate({panel['quantiles']}_bucket[$__rate_interval]))"
    return given | {f"{legend}p{percent}": f"histogram_quantile({percent / 100:g}, {buckets})" for percent in (50, 99)}


def _place_panels(rows: list[Table]) -> list[Table]:
    panels: list[Table] = []
    top = 0
    for row in rows:
        place = {"h": 1, "w": COLUMNS, "x": 0, "y": top}
        panels.append({"type": "row", "title": row["title"], "collapsed": False, "gridPos": place, "panels": []})
        top += 1
        across = 2 if len(row["panels"]) in {2, 4} else 3
        width = COLUMNS // across
        for number, panel in enumerate(row["panels"]):
            down, right = divmod(number, across)
            place = {"h": PANEL_HEIGHT, "w": width, "x": right * width, "y": top + down * PANEL_HEIGHT}
            panels.append(_write_panel(panel) | {"gridPos": place})
        top += -(-len(row["panels"]) // across) * PANEL_HEIGHT
    return [{"id": number} | panel for number, panel in enumerate(panels, start=1)]


def _write_panel(panel: Table) -> Table:
    kind = panel.get("kind", "timeseries")
    field: Table = {"unit": panel["unit"]}
    options: Table = {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True}}
    if kind == "state-timeline":
        shown = enumerate(STATES.items())
        states = {str(value): {"text": state, "color": color, "index": value} for value, (state, color) in shown}
        field["mappings"] = [{"type": "value", "options": states}]
    else:
        field["custom"] = {"drawStyle": "line", "fillOpacity": 10, "lineWidth": 1, "showPoints": "never"}
        options["tooltip"] = {"mode": "multi", "sort": "desc"}
    queries = enumerate(queries_of(panel).items())
    return {
        "type": kind,
        "title": panel["title"],
        "description": panel["text"],
        "datasource": SOURCE,
        "fieldConfig": {"defaults": field, "overrides": []},
        "options": options,
        "targets": [
            {"refId": chr(ord("A") + number), "datasource": SOURCE, "expr": query, "legendFormat": legend}
            for number, (legend, query) in queries
        ],
    }


def write_alerts(rows: list[Table]) -> str:
    """The rules as Prometheus reads them."""
    return ALERTS_HEAD + "".join(_write_rule(alert) for row in rows for alert in row.get("alerts", ()))


def _write_rule(alert: Table) -> str:
    expression, rule = alert["expr"], RULES[alert["problem"]]
    if "\n" in expression:
        expression = "|\n" + "\n".join(f"          {line}" for line in expression.split("\n"))
    lines = [f"      - alert: {alert['name']}", f"        expr: {expression}"]
    if "for" in alert:
        lines.append(f"        for: {alert['for']}")
    lines += [f"        labels: {{severity: {rule.severity}}}", "        annotations:"]
    texts = {"summary": rule.title, "description": rule.advice}
    return "\n".join([*lines, *(f"          {name}: {json.dumps(text)}" for name, text in texts.items())]) + "\n"


if __name__ == "__main__":
    main()
