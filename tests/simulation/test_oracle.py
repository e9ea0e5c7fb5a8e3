"""The independent model of the money: it is independent, and judges entries as docs/money.md says."""

import ast
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.simulation import oracle
from tests.simulation.database import Database
from tests.simulation.oracle import MoneyModel, TokenPrice, price_at, reply_cost
from tests.simulation.postgres import PostgresServer
from tests.simulation.process import Machine, Process
from tests.simulation.scheduler import Scheduler

PRICES = (TokenPrice(0, 10, 30, 2), TokenPrice(100, 20, 40, 3))


def entry(number: int, amount_nano: int, granted_nano: int, origin: str | None, **rest: Any) -> dict[str, Any]:
    kind = "charge" if origin is None else "correction"
    blank = {"completion_id": None, "source": None, "debt_id": None, "note": "", "created_at": 50}
    row = {"id": number, "account_id": "a", "kind": kind, "amount_nano": amount_nano, "granted_nano": granted_nano}
    return {**blank, **row, "origin": origin, **rest}


GRANT, PAYMENT = entry(1, 100, 100, "grant", note="soon"), entry(2, 100, 0, "payment")
CHARGE = entry(3, -120, -100, None, completion_id="c")


def broken_by(*entries: dict[str, Any]) -> list[str]:
    """The rules that these entries break, each in its own commit."""
    broken: list[str] = []
    model = MoneyModel(lambda rule, _: broken.append(rule))
    model.expiries_ms["a", "soon"] = 40
    for number in (1, 2):
        debt = {"id": number, "account_id": "a", "source": f"refund {number}", "left_nano": 50}
        model.commit([], [debt], [])
    for one in entries:
        model.commit([one], [], [])
        if one["completion_id"]:
            model.charged["c"].refunds = [None]
    return broken


def test_the_oracle_imports_nothing_of_the_product() -> None:
    """What is due is not computed by the code under test."""
    tree = ast.parse(Path(oracle.__file__).read_text())
    imported = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert imported == ["collections.abc", "typing"]
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Import)]


@pytest.mark.parametrize(
    ("upstream", "due_nano"),
    [("answers", 10 * 10 + 3 * 30), ("cached", 5 * 10 + 5 * 2 + 3 * 30), ("lies", 10 * 10 + 16 * 30)],
)
def test_the_cost_of_a_reply(upstream: str, due_nano: int) -> None:
    """40 characters are 10 tokens, half of them cached if the upstream says so. An output is charged to its limit."""
    assert reply_cost(PRICES[0], upstream, 40, 3, limit=16) == due_nano


def test_a_price_begins_at_its_time() -> None:
    """Not a millisecond before."""
    assert [price_at(PRICES, now_ms).input for now_ms in (0, 99, 100)] == [10, 10, 20]


@pytest.mark.parametrize(
    ("entries", "rule"),
    [
        ([GRANT, PAYMENT, CHARGE], None),
        ([GRANT, PAYMENT, {**CHARGE, "granted_nano": -20}], "an entry has the granted part that it must have"),
        ([GRANT, PAYMENT, CHARGE, entry(4, 120, 100, "refund", completion_id="c")], None),
        ([GRANT, PAYMENT, CHARGE, entry(4, 121, 101, "refund", completion_id="c")], "nobody gets back more"),
        ([PAYMENT, entry(4, -20, 0, "debt", debt_id=1)], None),
        ([PAYMENT, entry(4, -20, 0, "debt", debt_id=2)], "the oldest debt is paid first"),
        ([GRANT, entry(4, -100, -100, "expiry")], None),
        ([GRANT, entry(4, -99, -99, "expiry")], "what is left of granted credit expires, and no more"),
        ([GRANT, entry(4, -100, -100, "expiry", created_at=39)], "what is left of granted credit expires"),
    ],
)
def test_an_entry_is_judged(entries: list[dict[str, Any]], rule: str | None) -> None:
    """By its granted part, the debt that it pays, what the request cost and what has expired."""
    broken = broken_by(*entries)
    assert broken == [] if rule is None else any(one.startswith(rule) for one in broken)


def test_overlapping_pauses_set_no_clock_back() -> None:
    """A clock stands still as long as one of the pauses that stop it lasts, and is then behind by that time."""
    scheduler = Scheduler(Random(1))
    server = PostgresServer(scheduler, Database(), Random(1))
    process = Process(Machine(scheduler, Random(1), server, 0), 0, 1)
    for at_s, change, kind in (
        (1.0, process.pause, "freeze"),
        (2.0, process.pause, "sleep"),
        (3.0, process.resume, "freeze"),
        (4.0, process.resume, "sleep"),
    ):
        scheduler.at(at_s, change, kind)
    scheduler.run(6.0)
    assert scheduler.now_s - process.loop.time() == pytest.approx(3.0)
    assert scheduler.now_s - process.presence.host.elapsed_s() == pytest.approx(2.0)
    assert not process.loop.is_paused
