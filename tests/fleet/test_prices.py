"""A price changes while three gateways on Postgres serve: each request is charged by the price of its own moment."""

import itertools

import pytest

from cadenza.control.price_changes import PriceOrder, change_price
from cadenza.core.money import Price
from cadenza.core.records import COMMAND_LINE
from tests.fleet.fleet import Fleet
from tests.loopback import LoopbackUpstream
from tests.raw_client import RawClient
from tests.service import now_ms

pytestmark = pytest.mark.slow(reason="a fleet, and seconds until the price changes")
CLASS_ID = "fortissimo"  # which no other test asks for
OLD, NEW = Price(3_450, 17_250), Price(3_600, 18_000)
LEAD_MS, AFTER_MS = 2_000, 500
METERED = "SELECT started_at, input_nano, output_nano FROM usage WHERE class_id = 'fortissimo'"


def test_three_gateways_change_the_price_together(fleet: Fleet, upstream: LoopbackUpstream) -> None:
    """All show the change when the command returns. Each request has the price of its own moment."""
    key = fleet.ledger.create_key(fleet.ledger.create_account(10**12))
    clients = [RawClient(port, key) for port in fleet.ports]
    from_at = (now_ms() + LEAD_MS) // 1000 * 1000 + 1000
    order = PriceOrder(CLASS_ID, from_at, NEW)
    fleet.ledger.control(lambda store: change_price(store, order, {CLASS_ID: OLD}, COMMAND_LINE, now_ms()))
    assert [len(api.get(f"/v1/models/{CLASS_ID}").json["pricing_changes"]) for api in clients] == [1, 1, 1]
    for api in itertools.cycle(clients):
        assert api.chat(model=CLASS_ID).status == 200
        if now_ms() > from_at + AFTER_MS:
            break
    fleet.ledger.wait_until_nothing_is_held()
    found = fleet.ledger.query(METERED)
    assert {(row[0] >= from_at, *row[1:]) for row in found} == {(False, 3_450, 17_250), (True, 3_600, 18_000)}
    fleet.check()
