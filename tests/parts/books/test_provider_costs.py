"""What requests cost at their providers: margin, and a bill that is compared with what was really sent."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cadenza.cli import app
from tests.account import run_command
from tests.loopback import LoopbackUpstream, Status
from tests.raw_client import RawClient
from tests.service import Service
from tests.service_config import RouteSpec, ServiceSpec

COSTS = 'cost_input = "0.50"\ncost_output = "1.50"\ncost_cached = "0.05"\n'
COST_NANO = 8 * 500 + 3 * 50 + 7 * 1500  # of the loopback's usual reply
FORTE_NANO = 11 * 1070 + 7 * 3450
MEZZO_NANO = 8 * 100 + 3 * 20 + 7 * 210
MARGIN_NANO = 2 * (FORTE_NANO - COST_NANO)


@pytest.fixture(scope="module")
def stopped(shared_upstream: LoopbackUpstream) -> Iterator[Service]:
    """A service that has served two requests with known costs and one without, after one attempt that failed.

    It is stopped, so that everything it counted is written, and its models were tried by the doctor.
    """
    url = shared_upstream.base_url
    spec = ServiceSpec(
        providers={"acme": url, "other": url},
        routes={"forte": [RouteSpec("acme", "large", more_toml=COSTS)], "mezzo": [RouteSpec("other", "small")]},
    )
    shared_upstream.reset()
    with Service(spec) as service:
        client = RawClient(service.port, service.create_key(service.create_account(10**9)))
        shared_upstream.script(Status(500))
        assert client.chat(model="forte").status == 502
        for model in ("forte", "forte", "mezzo"):
            assert client.chat(model=model).status == 200
        service.stop()
        assert service.cli("doctor", "--try", "--provider", "acme").returncode in (0, 1)
        yield service


def margin(service: Service, *args: str) -> Any:
    return json.loads(run_command(service, "margin", "--json", *args))


def reconcile(service: Service, tmp_path: Path, line: str, *args: str) -> tuple[int, str]:
    """The exit code and what is printed for a bill of one line."""
    bill = tmp_path / "bill.csv"
    bill.write_text(f"date,model,num_model_requests,input_tokens,output_tokens\n{line}\n")
    command = ["reconcile", "--provider", "acme", "--file", str(bill), "--config", str(service.config), *args]
    done = CliRunner().invoke(app, command)
    return done.exit_code, done.stdout


def test_margin_has_what_is_known(stopped: Service) -> None:
    """Earned, cost and margin of requests with a known cost; the others are counted apart."""
    acme, other = margin(stopped, "--by", "provider")
    assert acme == {
        "provider": "acme",
        "requests": 2,
        "earned": f"{2 * FORTE_NANO / 1e9:.9f}".rstrip("0"),
        "cost": f"{2 * COST_NANO / 1e9:.9f}".rstrip("0"),
        "margin": f"{MARGIN_NANO / 1e9:.9f}".rstrip("0"),
        "percent": round(100 * MARGIN_NANO / (2 * FORTE_NANO), 1),
        "unknown_requests": 0,
        "unknown_earned": "0.00",
    }
    assert (other["requests"], other["unknown_requests"], other["percent"]) == (1, 1, None)
    assert other["unknown_earned"] == other["earned"] == f"{MEZZO_NANO / 1e9:.9f}".rstrip("0")


@pytest.mark.parametrize("group", ["class", "account", "month"])
def test_every_grouping_has_the_same_total(stopped: Service, group: str) -> None:
    """The groups are named, and their requests add up."""
    rows = margin(stopped, "--by", group)
    assert sum(row["requests"] for row in rows) == 3
    assert all(row[group] for row in rows)


def test_margin_is_a_table(stopped: Service) -> None:
    """The table ends with a total and a sentence on what is not known."""
    printed = run_command(stopped, "margin")
    assert "total" in printed
    assert "Requests whose cost is not known: 1." in printed
    assert margin(stopped, "--month", "2020-01") == []


def test_a_bill_is_explained_by_what_was_sent(stopped: Service, tmp_path: Path) -> None:
    """Two replies, a failed attempt and the doctor's trial explain a bill of up to four requests, and no more."""
    [[started_at]] = stopped.ledger.query("SELECT MAX(started_at) FROM usage")
    today = datetime.fromtimestamp(started_at / 1000, UTC).date().isoformat()
    code, printed = reconcile(stopped, tmp_path, f"{today},large,3,33,21")
    assert (code, "explained: trials by cadenza doctor: 1" in printed) == (0, True), printed
    assert "attempts that failed: 1 (1 failed)" in printed
    code, printed = reconcile(stopped, tmp_path, f"{today},large,2,22,14", "--json")
    assert (code, json.loads(printed)[0]["result"]) == (0, "agrees")
    code, printed = reconcile(stopped, tmp_path, f"{today},large,9,99,63")
    assert (code, "differs" in printed) == (1, True)


def test_a_provider_that_is_not_configured_is_named(stopped: Service, tmp_path: Path) -> None:
    """The nearest name is suggested."""
    bill = tmp_path / "bill.csv"
    bill.write_text("day,model,requests\n")
    done = stopped.cli("reconcile", "--provider", "acne", "--file", str(bill))
    assert (done.returncode, "acme" in done.stderr) == (1, True)
