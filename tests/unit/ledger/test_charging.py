"""How late and repeated requests end, without a store: charged, corrected, repeated or lost."""

import msgspec
import pytest

from cadenza.core.money import Price
from cadenza.core.records import Cap, Outcome, Usage
from cadenza.core.spans import ALL_TIME
from cadenza.ledger.caps import CapState
from cadenza.ledger.charging import LOST_STATUS, end_requests
from cadenza.ledger.rules import (
    BatchFacts,
    Changes,
    Demand,
    End,
    Ended,
    EndSource,
    Hold,
    LockedAccount,
    Recorded,
    Repeated,
)

DUE_NANO = 2000
HELD_NANO = 2500
FREE_NANO = 10_000
KEY = b"k" * 32
NOTHING = Demand(kept_nano=0, in_use_nano=0, wanted_nano=0, usual_nano=0)
HOLD = Hold("r1", "a", "k", "forte", 100, 50, Price(10, 30), stream=True, started_at=1)
OUTCOME = Outcome(
    request_id="req",
    completion_id="r1",
    endpoint="chat",
    status=200,
    duration_ms=1,
    ended_at=1,
    usage=Usage(0, 0),
)
LOST = Ended(is_lost=True)


def end_late(
    known: BatchFacts, *, digest: bytes | None = None, source: EndSource = "request", is_charged: bool = True
) -> tuple[Ended, LockedAccount, Changes]:
    """End a request whose process was swept: it has no reserve any more."""
    account, changes = LockedAccount("a", FREE_NANO, 0, 0), Changes()
    outcome = OUTCOME if is_charged else msgspec.structs.replace(OUTCOME, usage=None)
    hold = msgspec.structs.replace(HOLD, idempotency_digest=digest)
    late = End(outcome, hold, HELD_NANO, DUE_NANO if is_charged else 0, is_uncertain=True, is_late=True, source=source)
    [ended] = end_requests(account, NOTHING, [late], known, changes)
    return ended, account, changes


@pytest.mark.parametrize(
    ("recorded", "ended", "back_nano"),
    [
        (Recorded(DUE_NANO, "sweep"), Ended(DUE_NANO, is_repeated=True), 0),
        (Recorded(DUE_NANO + 700, "sweep"), Ended(DUE_NANO, corrected_nano=700), 700),
        (Recorded(DUE_NANO - 1, "sweep"), Ended(DUE_NANO - 1, is_lost=True), 0),
        (Recorded(DUE_NANO, "request"), Ended(DUE_NANO, is_repeated=True), 0),
        (Recorded(DUE_NANO - 1, "request"), Ended(DUE_NANO - 1, 1, is_repeated=True, is_lost=True), 0),
        (Recorded(0, "lost"), LOST, 0),
    ],
)
def test_an_end_that_the_store_has_is_corrected_repeated_or_lost(
    recorded: Recorded, ended: Ended, back_nano: int
) -> None:
    """Only what a sweep charged too much comes back, and nothing is charged again."""
    found, account, changes = end_late(BatchFacts(ended={"r1": recorded}))
    assert (found, account.balance_nano, changes.charges) == (ended, FREE_NANO + back_nano, [])
    assert sum(one.corrected_nano for one in changes.corrections) == back_nano


@pytest.mark.parametrize(
    ("charged_nano", "granted_nano", "back_nano"),
    [(DUE_NANO + 700, 0, 0), (DUE_NANO + 700, 900, 0), (DUE_NANO + 700, DUE_NANO + 300, 300), (DUE_NANO + 7, 9999, 7)],
)
def test_a_correction_gives_back_granted_credit_that_the_final_cost_does_not_take(
    charged_nano: int, granted_nano: int, back_nano: int
) -> None:
    """Paid credit comes back first, because granted credit is spent first."""
    _, account, changes = end_late(BatchFacts(ended={"r1": Recorded(charged_nano, "sweep", granted_nano)}))
    assert (account.granted_nano, [one.granted_nano for one in changes.corrections]) == (back_nano, [back_nano])


@pytest.mark.parametrize("granted_nano", [0, 400, DUE_NANO, DUE_NANO + 700])
@pytest.mark.parametrize("refunded_nano", [1, 700, DUE_NANO])
def test_after_a_refund_a_correction_gives_back_the_rest_of_each_kind(refunded_nano: int, granted_nano: int) -> None:
    """Of what was charged, refund and correction leave the final cost less the refund, of granted credit first."""
    charged_nano = DUE_NANO + 700
    by_refund_nano = max(0, refunded_nano - (charged_nano - granted_nano))
    recorded = Recorded(charged_nano, "sweep", granted_nano, refunded_nano)
    _, account, _ = end_late(BatchFacts(ended={"r1": recorded}))
    assert granted_nano - by_refund_nano - account.granted_nano == min(granted_nano, DUE_NANO - refunded_nano)


def test_a_sweep_never_corrects_what_a_request_was_charged() -> None:
    """Its mark is older than the end of the request, and may cost less."""
    found, account, changes = end_late(BatchFacts(ended={"r1": Recorded(DUE_NANO + 700, "request")}), source="sweep")
    assert (found, account.balance_nano) == (Ended(DUE_NANO + 700, is_repeated=True), FREE_NANO)
    assert (changes.charges, changes.corrections) == ([], [])


def test_a_correction_is_taken_off_what_the_cap_has_spent() -> None:
    """And it is made once, also within one batch."""
    cap = CapState("k", Cap(9000), ALL_TIME, 5000, 0, 0, 0)
    known = BatchFacts(ended={"r1": Recorded(DUE_NANO + 700, "sweep")}, caps={"k": cap})
    end_late(known)
    assert end_late(known)[0] == Ended(DUE_NANO, is_repeated=True)
    assert cap.spent_nano == 4300


@pytest.mark.parametrize(
    ("used_by", "is_lost"), [(None, True), ("r2", True), ("r1", False)], ids=["freed", "used by a retry", "its own"]
)
def test_a_request_is_charged_only_while_its_key_is_its_own(used_by: str | None, is_lost: bool) -> None:
    """Otherwise nothing is charged, no key is kept, and the metering row shows an error."""
    keys = {("a", KEY): Repeated(used_by, "req", is_open=False)} if used_by else {}
    found, account, changes = end_late(BatchFacts(keys=keys), digest=KEY)
    [charge] = changes.charges
    assert (found.is_lost, charge.has_entry, bool(changes.kept_keys)) == (is_lost, not is_lost, not is_lost)
    assert account.balance_nano == FREE_NANO - (0 if is_lost else DUE_NANO)
    assert (charge.charged_nano, charge.end.source) == ((0, "lost") if is_lost else (DUE_NANO, "request"))
    assert charge.end.outcome.status == (LOST_STATUS if is_lost else 200)


def test_a_request_that_is_not_charged_needs_no_key() -> None:
    """It is released, and only its own key is freed."""
    found, _, changes = end_late(BatchFacts(), digest=KEY, is_charged=False)
    assert (found, [hold.completion_id for hold in changes.freed_keys]) == (Ended(), ["r1"])


def test_a_lost_request_frees_its_idempotency_key() -> None:
    """Its API key was revoked: nothing is charged, so the key is not used. That of another request is not freed."""
    known = BatchFacts(keys={("a", KEY): Repeated("r1", "req")}, revoked_keys={"k"})
    found, _, changes = end_late(known, digest=KEY)
    assert (found, [hold.completion_id for hold in changes.freed_keys], changes.kept_keys) == (LOST, ["r1"], [])


def test_only_a_late_end_asks_whether_its_api_key_was_revoked() -> None:
    """A request that runs when its key is revoked is charged; one that ends late may have begun after that."""
    assert end_late(BatchFacts(revoked_keys={"k"}))[0] == LOST
    account = LockedAccount("a", FREE_NANO, 0, 0)
    in_time = End(OUTCOME, msgspec.structs.replace(HOLD, idempotency_digest=KEY), HELD_NANO, DUE_NANO)
    known = BatchFacts(keys={("a", KEY): Repeated("r1", "req")}, revoked_keys={"k"})
    [ended] = end_requests(account, NOTHING, [in_time], known, Changes())
    assert ended == Ended(DUE_NANO)
