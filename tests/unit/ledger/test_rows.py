"""The rows of a batch: tuples, whose values must be those of the columns."""

import pytest

from cadenza.core.records import Usage
from cadenza.ledger.rows import ADD_ENTRY, ADD_USAGE, USAGE_COLUMNS, BatchRows
from cadenza.ledger.rules import Charge, End
from cadenza.store.statements import Statement
from tests.store.moves import make_hold, make_outcome


@pytest.mark.parametrize("statement", [ADD_ENTRY, ADD_USAGE])
def test_rows_are_in_the_order_of_their_table(statement: Statement) -> None:
    """The order of the columns is that of the placeholders."""
    assert statement.columns
    values = {name: number for number, name in enumerate(statement.columns)}
    assert statement.sqlite_values(values) == tuple(values.values())


def test_a_charge_has_an_entry_and_a_metering_row() -> None:
    """Each value is in its column."""
    hold, outcome, rows = (
        make_hold(prompt_tokens=90, key=b"k"),
        make_outcome(usage=Usage(90, 40, 10)),
        BatchRows("proc_a"),
    )
    rows.add_charge(Charge(End(outcome, hold, 700, 500, provider_cost_nano=7), 400, granted_nano=300))
    assert rows.entries == [("acct_a", "charge", -400, "r1", "", outcome.ended_at, -300)]
    [row] = rows.usage
    by_name = dict(zip(USAGE_COLUMNS, row, strict=True))
    for record in (hold, hold.price, outcome, outcome.usage):
        same_names = {name for name in by_name if hasattr(record, name)} - {"version"}
        assert {name: by_name[name] for name in same_names} == {name: getattr(record, name) for name in same_names}
    found = [by_name[name] for name in ("version", "cost_nano", "held_nano", "short_nano", "source")]
    assert found == [hold.version, 400, 700, 100, "request"]
    assert by_name["provider_cost_nano"] == 7
