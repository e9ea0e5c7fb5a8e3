"""Operators' pages of money: vouchers, margins, a provider's bill and the close of a month, beside the commands."""

import asyncio
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from cadenza.cli import app
from cadenza.parts.books.margin import MARGIN_GROUPS
from tests.account import run_command
from tests.cli import a_month
from tests.loopback import LoopbackUpstream
from tests.parts.site.web.operators import make_operator
from tests.service import PASSWORD, Service, wait_until
from tests.service_config import RouteSpec, ServiceSpec
from tests.visitor import Visitor, signed_in

OCTOBER = "range=&from=2025-10-01&to=2025-10-31"
BILL = """Day;Model;Requests;Input tokens;Output tokens;Cost
2025-10-06;large;10;1.000.000;500.000;8,00
2025-10-20;large;4;400.000;200.000;3,52
"""


@pytest.fixture(scope="module")
def business(shared_upstream: LoopbackUpstream) -> Iterator[Service]:
    """October 2025 of a small service (a_month.py)."""
    routes = {"forte": [RouteSpec("acme", "large")]}
    with Service(ServiceSpec({"acme": shared_upstream.base_url}, routes)) as service:
        for email in (a_month.ANN, a_month.BOB):
            words = ["account", "create", email, "--password-stdin", "--config", str(service.config)]
            assert CliRunner().invoke(app, words, input=f"{PASSWORD}\n").exit_code == 0
            run_command(service, "key", "create", "--account", email)
        asyncio.run(a_month.fill(service.folder))
        yield service


@pytest.fixture
def boss(business: Service) -> Visitor:
    email = business.create_account(0)
    make_operator(business, email)
    visitor = signed_in(business, email)
    visitor.get("/operator/vouchers")
    return visitor


def plain(text: str) -> str:
    """Without what only people need: separators of thousands, and signs of dollars."""
    return re.sub(r"(?<=\d),(?=\d{3})|\$", "", text)


@pytest.mark.parametrize("group", MARGIN_GROUPS)
def test_margins_are_those_of_the_command(business: Service, boss: Visitor, group: str) -> None:
    """Each row, the total and the sentences below it are the command's, without columns of a cost that is unknown."""
    seen = plain(boss.get(f"/operator/margins?{OCTOBER}&by={group}").words)
    lines = run_command(business, "margin", "--month", "2025-10", "--by", group).splitlines()
    assert len(lines) > 2
    for line in lines[1:]:
        words = re.sub(r"(?<=\.\d) +0 +0\.00(?= |$)", "", line).split()
        assert " ".join(words) in seen, (line, seen)


def test_a_bill_is_judged_as_by_the_command(business: Service, boss: Visitor, tmp_path: Path) -> None:
    """The same lines, results and sentences; a wrong bill is a sentence, and keeps what was typed."""
    form = {"provider": "acme", "bill": BILL.replace("\n", "\r\n"), "percent": "0.5", "cents": "1"}
    seen = boss.post("/operator/bill", form)
    path = tmp_path / "bill.csv"
    path.write_text(BILL)
    done = business.cli("reconcile", "--provider", "acme", "--file", str(path))
    assert (seen.status, done.returncode) == (200, 1)
    for line in done.stdout.splitlines()[1:]:
        assert " ".join(line.split()) in plain(seen.words), line
    assert "differs" in seen.words
    assert "agrees" in boss.post("/operator/bill", {**form, "percent": "10"}).words
    long = "".join(f"2025-{month:02}-{day:02};small;1;1;1;0\n" for month in range(1, 11) for day in range(1, 29))
    assert (
        "Of 282 lines, 100 that do not agree are shown"
        in boss.post("/operator/bill", {**form, "bill": BILL + long}).words
    )
    for wrong, words in (
        ({"bill": "nothing"}, "has no column for the day"),
        ({"bill": f"day,model,cost,requests\n2025-10-06,large,{'9' * 400},1"}, "is not a number"),
        ({"provider": "<b>acmo"}, "known names: acme"),
    ):
        refused = boss.post("/operator/bill", {**form, **wrong})
        assert (refused.status, words in refused.words, "<b>" in refused.text) == (400, True, False), refused.words
        assert wrong.get("bill", BILL[:20]) in refused.text
    large = boss.post("/operator/bill", {**form, "bill": "x" * 70_000})
    assert (large.status, "A form has at most 64 KiB." in large.words, 'href="/"' in large.text) == (413, True, True)


def test_vouchers_are_made_listed_and_revoked(business: Service, boss: Visitor) -> None:
    """Codes are shown once; the list says of each what the command says; a form that is sent twice makes them once."""
    [reference] = re.findall('name="reference" value="([^"]+)"', boss.get("/operator/vouchers").text)
    form = {"amount": "2.50", "count": "2", "credit_days": "30", "note": "<i>fair", "reference": reference}
    made = boss.post("/operator/vouchers", form)
    codes = re.findall(r"CDZ(?:-[0-9A-Z]{4}){5}", made.words)
    assert len({*codes}) == 2
    refused = boss.post("/operator/vouchers", form)
    assert (refused.status, "vouchers were made before" in refused.words) == (400, True)
    assert boss.post("/operator/vouchers", {"amount": "2.50", "count": "many"}).status == 400
    page = boss.get("/operator/vouchers")
    assert not any(code in page.text for code in codes)
    listed = json.loads(run_command(business, "voucher", "list", "--json"))
    assert len(listed) == 2
    for one in listed:
        assert f"{one['prefix']} ${one['amount']} {one['state']}" in page.words
        assert f"{one['note']} Revoke" in page.words
    done = boss.post("/operator/vouchers/revoke", {"voucher": listed[0]["id"]})
    assert done.location == "/operator/vouchers?note=voucher-revoked"
    states = [one["state"] for one in json.loads(run_command(business, "voucher", "list", "--json"))]
    assert states == ["expired", "unused"]
    assert boss.post("/operator/vouchers/revoke", {"voucher": listed[0]["id"]}).status == 400


def test_a_month_is_closed_by_a_button(business: Service, boss: Visitor) -> None:
    """With the hash and the operator's name, as by the command. A month that runs is refused, and the page says why."""
    page, running = "/operator/months/2025-10", f"{datetime.now(UTC):%Y-%m}"
    assert "not closed" in boss.get(page).words
    assert boss.post(f"{page}/close").location == f"{page}?note=close-started"
    wait_until(lambda: "Nothing in this month can change" in boss.get(page).words, "the close")
    [event] = business.ledger.query("SELECT actor, detail FROM audit_events WHERE event = 'ledger.close'")
    assert "@" in event["actor"]
    [shown] = re.findall(r"[0-9a-f]{64}", boss.get(page).words)
    assert event["detail"].endswith(shown)
    assert shown in run_command(business, "report", "month", "2025-10")
    assert boss.post(f"/operator/months/{running}/close").status == 303
    said = f"The month {running} can be closed after"
    wait_until(lambda: said in boss.get(f"/operator/months/{running}").words, "the refusal")
    assert said not in boss.get(page).words
