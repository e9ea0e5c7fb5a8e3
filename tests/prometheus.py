"""A real Prometheus that scrapes services of the tests. Its durations, and those of the alert rules, are shortened."""

import contextlib
import json
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

from deploy.dashboard import ALERTS

from tests.debian import find_or_install
from tests.service import wait_until

FASTER = 60  # a minute of the rules is a second of the tests
SCRAPE_S = 0.5
RATE_S = 5.0
ANSWER_S = 30.0
UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
DURATION = re.compile(r"(\[|for: )(\d+)([smhd])\b")


def faster_rules(faster: int) -> str:
    """The alert rules, with all durations divided."""

    def shorten(found: re.Match[str]) -> str:
        before, count, unit = found.groups()
        return f"{before}{round(int(count) * UNIT_S[unit] * 1000 / faster)}ms"

    return DURATION.sub(shorten, ALERTS.read_text())


class Prometheus:
    """A running server."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def firing(self) -> set[str]:
        """The alerts that fire now."""
        alerts = self._get("/api/v1/alerts")["data"]["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    def query(self, expression: str) -> list[Any]:
        return list(self._get("/api/v1/query", query=expression)["data"]["result"])

    def query_panel(self, expression: str, last_s: float, step_s: float = 1.0) -> list[Any]:
        """The series of a panel over the last seconds."""
        expression, now_s = expression.replace("$__rate_interval", f"{RATE_S:g}s"), time.time()
        span = {"start": now_s - last_s, "end": now_s, "step": step_s}
        return list(self._get("/api/v1/query_range", query=expression, **span)["data"]["result"])

    def is_ready(self) -> bool:
        try:
            with urlopen(f"{self._url}/-/ready", timeout=ANSWER_S) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _get(self, path: str, **query: Any) -> Any:
        with urlopen(f"{self._url}{path}?{urlencode(query)}", timeout=ANSWER_S) as answer:
            return json.load(answer)


@contextlib.contextmanager
def running_prometheus(ports: Sequence[int], faster: int = FASTER) -> Iterator[Prometheus]:
    """One that scrapes these ports of this machine, and evaluates the rules `faster` times as fast."""
    program = find_or_install("prometheus", "prometheus")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="cadenza-prometheus-") as name:
        folder = Path(name)
        (folder / "alerts.yaml").write_text(faster_rules(faster))
        targets = [f"127.0.0.1:{one}" for one in ports]
        every = f"{SCRAPE_S * 1000:.0f}ms"
        config = {
            "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
            "rule_files": ["alerts.yaml"],
            "scrape_configs": [{"job_name": "cadenza", "static_configs": [{"targets": targets}]}],
        }
        (folder / "prometheus.yaml").write_text(json.dumps(config))  # which is YAML too
        command = [program, f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/data"]
        command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            server = Prometheus(port)
            wait_until(lambda: process.poll() is not None or server.is_ready(), "Prometheus being ready")
            assert process.poll() is None, (folder / "log").read_text()
            yield server
        finally:
            process.kill()
            process.wait()
