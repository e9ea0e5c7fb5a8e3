from pathlib import Path

import pytest
from bench.money.cadenza import CadenzaGateway
from bench.money.reckon import CountedAmount
from bench.money.run import measure
from bench.money.schedule import Failure, FaultPlan

PLAN = FaultPlan(load_s=10.0, failures=(Failure("kill", 4.0),), small_s=(1.0,), revoked_s=(2.5,))
NONE = CountedAmount()


@pytest.mark.release(reason="a run of the benchmark takes real seconds")
def test_a_short_run_finds_no_fault_in_the_money(tmp_path: Path) -> None:
    """With a kill and a revocation, Cadenza loses no whole reply, charges none twice, and passes no budget."""
    result = measure(CadenzaGateway(on_postgres=False), PLAN, 1, tmp_path / "gateway", tmp_path)
    figures = result.reckoning
    assert figures
    assert figures.endings["whole"] > 20
    assert 0 < figures.charged_nano <= figures.due_nano
    assert (figures.lost_whole, figures.doubled, figures.overdraft) == (NONE, NONE, NONE)
    assert (figures.excess, figures.unknown, figures.balance_off_nano) == (NONE, NONE, 0)
    assert figures.accepted_after_revocation == 0
    assert "The ledger is sound" in result.own_check
