"""A month of a small business, closed to the nano-dollar from the command line and from the pages.

Forty accounts, two operators, requests before and after a change of price, refunds, payments, a chargeback that leaves
a debt, vouchers, and credit that expires. The service runs now; then the times in its store are moved into the past.
"""

import contextlib
import csv
import io
import json
import re
import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cadenza.core.money import format_dollars
from cadenza.core.spans import month_span
from tests.account import Account, forte_nano, run_command
from tests.loopback import LoopbackUpstream
from tests.parts.payments.charge_list import ChargeList, listing_charges
from tests.parts.payments.local_stripe import SECRET_KEY, STRIPE_TOML, WEBHOOK_SECRET, make_event, send_event
from tests.parts.site.web.operators import account_id_of, make_operator
from tests.service import CREDIT_NANO, Service, wait_until
from tests.service_config import classes_spec
from tests.store.rows import sum_up_file
from tests.visitor import Seen, Visitor

DOLLAR_NANO = 10**9
ACCOUNTS = 40
LAST_ENTRY = "SELECT MAX(id) AS id FROM entries"
PAYMENT = """
    INSERT INTO payments (id, account_id, provider, checkout, amount_nano, state, created_at, changed_at)
    VALUES (?, ?, 'stripe', ?, ?, 'open', 1, 1)"""
UPDATE_TRIGGER = "SELECT sql FROM sqlite_master WHERE name = 'entries_refuse_update'"


def months_ago(count: int) -> str:
    first = datetime.now(UTC).replace(day=1)
    for _ in range(count):
        first = (first - timedelta(days=1)).replace(day=1)
    return f"{first:%Y-%m}"


class Books:
    """What the test did: amounts of the lines of the report, and the granted part of each."""

    def __init__(self) -> None:
        self.amounts: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])  # amount, granted, entries

    def add(self, line: str, amount_nano: int, granted_nano: int) -> None:
        found = self.amounts[line]
        found[0] += amount_nano
        found[1] += granted_nano
        found[2] += 1

    def total(self) -> tuple[int, int]:
        return sum(one[0] for one in self.amounts.values()), sum(one[1] for one in self.amounts.values())


class Business:
    """The service, its accounts, and what happened in the month before, in the month and in the month after."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.before, self.month, self.after = (months_ago(count) for count in (3, 2, 1))
        self.books = {name: Books() for name in (self.before, self.month, self.after)}
        self.last_entry = dict[str, int]()
        self.accounts = [Account(service, CREDIT_NANO) for _ in range(ACCOUNTS)]
        for _ in range(ACCOUNTS + 1):  # and the owner of the service
            self.books[self.before].add("Granted", CREDIT_NANO, CREDIT_NANO)

    def end(self, month: str) -> None:
        self.last_entry[month] = self.service.ledger.query(LAST_ENTRY)[0]["id"]

    def change(self, sql: str, *values: Any) -> None:
        with contextlib.closing(sqlite3.connect(self.service.store, timeout=60)) as store, store:
            store.execute(sql, values)

    def ask(self, account: Account, month: str, price: tuple[int, int] | None = None) -> tuple[str, int]:
        """One request, which is paid with granted credit. Its id, and what it cost."""
        reply = account.api.chat().json
        counts = reply["usage"]["prompt_tokens"], reply["usage"]["completion_tokens"]
        cost_nano = counts[0] * price[0] + counts[1] * price[1] if price else forte_nano(*counts)
        self.books[month].add("Charged", -cost_nano, -cost_nano)
        return reply["id"], cost_nano

    def pay(self, account: Account, number: int) -> None:
        """Ten dollars, by card."""
        checkout = f"cs_{number}"
        account_id = account_id_of(self.service, account.email)
        self.change(PAYMENT, f"pay_{number}", account_id, checkout, 10 * DOLLAR_NANO)
        self.event(
            "checkout.session.completed",
            id=checkout,
            payment_intent=f"pi_{number}",
            payment_status="paid",
            amount_total=1000,
        )
        self.books[self.month].add("Paid", 10 * DOLLAR_NANO, 0)

    def event(self, kind: str, **thing: Any) -> None:
        assert send_event(self.service.port, make_event(kind, {**thing, "currency": "usd"})).status == 200

    def move_into_the_past(self) -> None:
        """Give each entry a time in its month, in the order in which they were made."""
        with contextlib.closing(sqlite3.connect(self.service.store, timeout=60)) as store, store:
            [(trigger,)] = store.execute(UPDATE_TRIGGER).fetchall()
            store.execute("DROP TRIGGER entries_refuse_update")
            first = 0
            for month, last in self.last_entry.items():
                span = month_span(month)
                step_ms = (span.end_ms - span.start_ms) // (last - first)
                where = (span.start_ms, first, step_ms, first, last)
                store.execute("UPDATE entries SET created_at = ? + (id - ? - 1) * ? WHERE id > ? AND id <= ?", where)
                first = last
            store.execute(trigger)
            store.execute(
                "UPDATE usage SET started_at = (SELECT e.created_at FROM entries e"
                " WHERE e.completion_id = usage.completion_id AND e.kind = 'charge') - duration_ms"
            )
            sum_up_file(store)
            store.execute("UPDATE accounts SET created_at = ?", (month_span(self.before).start_ms,))


@pytest.fixture(scope="module")
def charges() -> Iterator[ChargeList]:
    with listing_charges() as listed:
        yield listed


@pytest.fixture(scope="module")
def service(shared_upstream: LoopbackUpstream, charges: ChargeList) -> Iterator[Service]:
    """A service that takes payments by card."""
    with pytest.MonkeyPatch.context() as variables:
        variables.setenv("TEST_STRIPE_KEY", SECRET_KEY)
        variables.setenv("TEST_STRIPE_WEBHOOK", WEBHOOK_SECRET)
        spec = classes_spec(shared_upstream.base_url)
        with Service(msgspec.structs.replace(spec, more_toml=STRIPE_TOML.format(url=charges.url))) as running:
            yield running


@pytest.fixture(scope="module")
def operators(service: Service) -> list[Visitor]:
    """Two operators. Their accounts have no credit."""
    found = []
    for _ in range(2):
        email, visitor = service.create_account(0), Visitor(service.port)
        make_operator(service, email)
        visitor.sign_in(email)
        found.append(visitor)
    return found


@pytest.fixture(scope="module")
def business(service: Service, operators: list[Visitor]) -> Business:
    """Three months of it, in a store whose times are in the past."""
    made = Business(service)
    made.end(made.before)
    run_month(made, operators)
    made.end(made.month)
    for account in made.accounts[:3]:
        made.ask(account, made.after, NEW_PRICE)
    made.end(made.after)
    service.stop()
    made.move_into_the_past()
    service.start()
    for visitor in operators:
        visitor.port = service.port
    return made


NEW_PRICE = (2_000, 7_000)  # nano-dollars a token


def run_month(made: Business, operators: list[Visitor]) -> None:
    service, books = made.service, made.books[made.month]
    payer, refunded, debtor, guest, *_ = made.accounts[20:]
    asked = [made.ask(account, made.month) for account in made.accounts if account is not debtor]
    change_price(service)
    for account in made.accounts[10:20]:
        made.ask(account, made.month, NEW_PRICE)

    run_command(service, "refund", asked[0][0], "--reason", "a bad answer")
    run_command(service, "refund", asked[1][0], "--part", format_dollars(7), "--reason", "a slow answer")
    page = f"/operator/requests/{asked[2][0]}/refund"
    assert operators[0].api("POST", page, {"reason": "no answer"}).status == 200
    for amount_nano in (asked[0][1], 7, asked[2][1]):
        books.add("Refunded", amount_nano, amount_nano)

    for number, account in enumerate((payer, refunded, debtor)):
        made.pay(account, number)
    made.event("charge.refunded", amount_refunded=400, payment_intent="pi_1", metadata={"payment": "pay_1"})
    books.add("Returned or disputed", -4 * DOLLAR_NANO, 0)

    accounts = {account: f"/operator/accounts/{account_id_of(service, account.email)}" for account in made.accounts}
    assert operators[0].api("POST", f"{accounts[guest]}/grants", {"amount": "2.50"}).status == 200
    books.add("Granted", 2_500_000_000, 2_500_000_000)
    taken = {"amount": "14.00", "reason": "a mistake"}
    assert operators[1].api("POST", f"{accounts[debtor]}/corrections", taken).status == 200
    books.add("Corrected", -14 * DOLLAR_NANO, -CREDIT_NANO)
    made.event("charge.dispute.created", id="dp_1", amount=1000, status="needs_response", payment_intent="pi_2")
    books.add("Returned or disputed", -DOLLAR_NANO, 0)  # what was left; nine dollars are a debt

    for account in (debtor, guest):
        owner, code = Visitor(service.port), run_command(service, "voucher", "create", "3.00").strip()
        owner.sign_in(account.email)
        assert owner.api("POST", "/vouchers/redeem", {"code": code}).status == 200
        books.add("Granted", 3 * DOLLAR_NANO, 3 * DOLLAR_NANO)
    books.add("Returned or disputed", -3 * DOLLAR_NANO, -3 * DOLLAR_NANO)  # pays a part of the debt

    run_command(service, "account", "credit", guest.email, "0.75", "--expires", "1")
    books.add("Granted", 750_000_000, 750_000_000)
    service.stop()
    made.change("UPDATE credit_lots SET expires_at = 1 WHERE expires_at IS NOT NULL")
    service.start()  # which takes what has expired
    wait_until(lambda: bool(service.ledger.query("SELECT 1 FROM entries WHERE origin = 'expiry'")), "the expiry")
    books.add("Expired", -750_000_000, -750_000_000)
    for visitor in operators:
        visitor.port = service.port
    for account in made.accounts:
        account.api.port = service.port


def change_price(service: Service) -> None:
    """In the middle of a day, from the next second on."""
    from_s = int(time.time()) + 2
    moment = datetime.fromtimestamp(from_s, UTC).isoformat()
    run_command(service, "class", "price", "forte", "--input", "2.00", "--output", "7.00", "--from", moment)
    wait_until(lambda: time.time() > from_s, "the new price")


def report(service: Service, month: str, *args: str) -> dict[str, tuple[str, str, str, int]]:
    """The lines of the report: amount, paid, granted and entries."""
    rows = json.loads(run_command(service, "report", "month", month, "--json", *args))
    return {one["line"]: _figures(one) for one in rows if one["origin"] is None and one["day"] is None}


def _figures(row: dict[str, Any]) -> tuple[str, str, str, int]:
    return row["amount"], row["paid"], row["granted"], int(row["count"])


def expected(business: Business, month: str) -> dict[str, tuple[str, str, str, int]]:
    """The same, from what the test did."""
    names = list(business.books)
    opening = [business.books[name].total() for name in names[: names.index(month)]]
    before = sum(one[0] for one in opening), sum(one[1] for one in opening)
    total = business.books[month].total()
    lines = {line: (one[0], one[1], one[2]) for line, one in business.books[month].amounts.items()}
    lines["Opening balance"] = (*before, 0)
    lines["Closing balance"] = (before[0] + total[0], before[1] + total[1], 0)
    return {
        line: (format_dollars(amount), format_dollars(amount - granted), format_dollars(granted), count)
        for line, (amount, granted, count) in lines.items()
    }


def exact_amounts(seen: Seen, line: str) -> list[Decimal]:
    """Those of a line of the report: an amount that is rounded has the exact one in its title."""
    [cells] = re.findall(rf"<th[^>]*>{re.escape(line)}</th>((?:<td class=\"number\">.*?</td>){{3}})", seen.text)
    found = re.findall(r'<td class="number">(?:<span title="([^"]*)">)?([^<]*)', cells)
    return [Decimal((title or text).replace("−", "-").replace("$", "").replace(",", "")) for title, text in found]


def test_a_month_is_closed_to_the_nano_dollar(business: Business, operators: list[Visitor], tmp_path: Path) -> None:
    """Report, page and CSV say what happened, before the close and after it; and the closed month is as exported."""
    service, month = business.service, business.month
    nothing = ("0.00", "0.00", "0.00", 0)
    for name in business.books:
        found = report(service, name)
        assert {line: figures for line, figures in found.items() if figures != nothing} == {
            line: figures for line, figures in expected(business, name).items() if figures != nothing
        }
    figures = report(service, month)
    assert all(figures[line] != nothing for line in figures)

    page = f"/operator/months/{month}"
    assert "not closed" in operators[0].get(page).words
    hashes = [run_command(service, "ledger", "close", name).strip() for name in (business.before, month)]
    assert report(service, month) == figures
    seen = operators[1].get(page)
    assert hashes[1] in seen.words
    for line, shown in figures.items():
        assert exact_amounts(seen, line) == [Decimal(text) for text in shown[:3]], line
    shown = operators[0].api("GET", page).json
    assert (shown["state"], shown["hash"], shown["requests"]) == ("closed", hashes[1], ACCOUNTS - 1 + 10)
    table = csv.DictReader(io.StringIO(operators[0].get(f"{page}/report.csv").text))
    in_csv = {row["line"]: _figures(row) for row in table if not row["origin"] and not row["day"]}
    assert in_csv == figures

    for form in ("csv", "jsonl"):
        file = tmp_path / f"month.{form}"
        file.write_text(run_command(service, "ledger", "export", "--month", month, "--format", form))
        said = run_command(service, "ledger", "verify", "--month", month, str(file))
        assert hashes[1] in said
        assert "Proven by the hash: id, created_at_ms, account_id, kind, amount_nano, " in said
        assert "The same as in the store: account, request_id, class, prompt_tokens, " in said
    assert hashes[1] in run_command(service, "ledger", "verify", "--month", month)
    assert f"The months up to {month} are closed" in run_command(service, "ledger", "check")
    assert "sound" in run_command(service, "ledger", "check", "--all")


def test_payments_are_listed_with_the_ids_of_the_provider(business: Business, tmp_path: Path) -> None:
    """With what was returned or disputed in the month: they add up to the report, also if more is returned later."""
    file = tmp_path / "payments.csv"
    args = ("report", "month", business.month, "--json", "--payments", str(file))
    days = [row for row in json.loads(run_command(business.service, *args)) if row["day"]]
    rows = list(csv.DictReader(io.StringIO(file.read_text())))
    paid = [row for row in rows if row["origin"] == "payment"]
    assert [(row["source"], row["checkout"], row["reference"], row["amount"]) for row in paid] == [
        (f"pay_{number}", f"cs_{number}", f"pi_{number}", "10.00") for number in range(3)
    ]
    figures = report(business.service, business.month)
    for line, chosen in (("Paid", paid), ("Returned or disputed", [row for row in rows if row not in paid])):
        assert sum(Decimal(row["amount"]) for row in chosen) == Decimal(figures[line][0])
        assert all(row["created_at"].startswith(business.month) and row["source"] for row in chosen)
    assert {row["provider"] for row in days} == {"stripe"}
    assert (sum(row["count"] for row in days), days[0]["day"][:7]) == (3, business.month)


def test_payments_are_compared_with_the_provider(business: Business, charges: ChargeList) -> None:
    """--verify finds nothing if both agree, and names each payment that differs or that one side lacks."""
    at_s = month_span(business.month).start_ms // 1000 + 1000
    charges.add(0, at_s - 2000)  # its event came late
    charges.add(1, at_s, amount_refunded=400)
    charges.add(2, at_s)  # disputed, but not refunded
    charges.add(3, at_s, metadata={})  # of another program
    charges.add(4, at_s, status="failed")
    command = ("report", "month", business.month, "--verify")
    done = business.service.cli(*command)
    said = "The provider lists 2 payments of the month, 20.00 dollars. Payments of other programs: 1. Differences: 0."
    assert (done.returncode, said in done.stderr) == (0, True), done.stderr

    del charges.charges[-1]
    charges.charges[-1]["amount_refunded"] = 300
    next(one for one in charges.charges if one["id"] == "ch_2")["amount_refunded"] = 100
    charges.add(9, at_s)
    done = business.service.cli(*command)
    assert done.returncode == 1
    for difference in (
        "pay_0 (cs_0) gave credit, but the provider does not list it",
        "pay_1: 4.00 here and 3.00 there were refunded",
        "pay_2: 0.00 here and 1.00 there were refunded",
        "ch_9 was paid at the provider, but gave no credit",
        "Differences: 4.",
    ):
        assert difference in done.stderr
