"""The ledger check of the operator's page: one at a time, with a result in the audit log."""

from pathlib import Path

import pytest

from cadenza.core.records import Operator
from cadenza.ledger.check import CheckCounts, Violation
from cadenza.observe import make_log
from cadenza.parts.site.operator.ledger_check import LedgerCheck, describe
from cadenza.store.migrate import migrate
from cadenza.store.sqlite.store import SqliteStore

BY = Operator("operator@example.org")


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    return SqliteStore(tmp_path / "cadenza.db")


async def test_one_check_runs_at_a_time(store: SqliteStore) -> None:
    """A second check is not begun while one runs; each that ends leaves one result with its operator."""
    await migrate(store)
    check = LedgerCheck(store, make_log())
    first = check.begin(BY)
    assert first
    assert (check.begin(BY), check.is_running) == (None, True)
    await first
    [result] = await check.results()
    assert (result.actor, result.account_id) == (BY.name, None)
    assert result.detail.startswith("no findings: 0 accounts")
    second = check.begin(BY)
    assert second
    await second
    assert len(await check.results()) == 2
    await store.close()


async def test_a_store_that_fails_is_said(store: SqliteStore) -> None:
    """A check that cannot be made shows why, and leaves no result."""
    check = LedgerCheck(store, make_log())
    running = check.begin(BY)
    assert running
    await running
    assert "was not checked" in check.problem
    await store.close()


def test_findings_are_described() -> None:
    """The result names how many findings there are, and the first of them."""
    findings = [Violation("a rule", f"acct_{number}", number) for number in range(7)]
    text = describe(findings, CheckCounts(7, 1_000, 3, 0), 0.25)
    assert text.startswith(
        "7 findings: 7 accounts, 1,000 entries, 3 requests in 0.2 s. acct_0 breaks 'a rule'; acct_1 "
    )
    assert "acct_1 breaks 'a rule' by 0.000000001 dollars" in text
    assert "acct_4" in text
    assert "acct_5" not in text
