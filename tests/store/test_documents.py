"""Documents on both databases: issued once, numbered without gaps, adding up, and unchanged by what comes later."""

import asyncio
import io

import pytest

from cadenza.control.money.credit import give_credit
from cadenza.control.money.documents import (
    GRACE_MS,
    DocumentIssuer,
    Issued,
    issue_of_payments,
    issue_statements,
    list_documents,
    search_documents,
    set_buyer,
)
from cadenza.control.money.payments import DisputeClosed, Refunded
from cadenza.control.money.refunds import refund_request
from cadenza.control.money.statement import sum_entries
from cadenza.core.documents import ClassCharges, DocumentFacts, DocumentLine, Party, Seller
from cadenza.core.errors import ControlError
from cadenza.core.records import COMMAND_LINE, Usage
from cadenza.core.spans import month_span
from cadenza.observe import make_log
from cadenza.store.schema import documents
from cadenza.store.store import Store, StoreRefused
from tests.store.moves import opened
from tests.store.rows import DOLLAR_NANO, NOW_MS, rows_of, run_sql
from tests.store.test_debts import CENT_NANO, DISPUTED, pay_ten, tell
from tests.store.test_kinds_of_credit import EMAIL, spend

SELLER = Seller(Party("Example Ltd", "1 Main Street\nDublin", "IE123"), "EX-", "VAT", 23_000, "Thank you.")
BUYER = Party("Żółw 北京 sp. z o.o.", "ul. Długa 1\nWarszawa", "PL1")
MONTH = "2027-01"  # of NOW_MS
LATER_MS = month_span(MONTH).end_ms + GRACE_MS


async def facts_of(store: Store) -> list[DocumentFacts]:
    """The documents of the account, oldest first in each kind."""
    found = await list_documents(store, "acct_a")
    return [one.read() for one in sorted(found, key=lambda one: (one.kind, one.ordinal))]


async def test_a_payment_has_one_receipt(store: Store, url: str) -> None:
    """Of many processes that look at once, one issues it: with seller, buyer, and the tax that the payment includes."""
    await pay_ten(store)
    await set_buyer(store, "acct_a", BUYER, EMAIL, NOW_MS)
    async with opened(url) as beside:
        tries = [issue_of_payments(one, SELLER, NOW_MS + 5) for one in (store, beside) * 3]
        assert sum([done.receipts for done in await asyncio.gather(*tries)]) == 1
    [receipt] = await facts_of(store)
    assert (receipt.number, receipt.seller, receipt.buyer) == ("EX-R-000001", SELLER.party, BUYER)
    assert receipt.rows() == [("Prepaid credit, by card", "10.00"), ("Net", "8.13"), ("VAT 23%", "1.87")]
    assert (receipt.total, receipt.moved_at, receipt.payment_reference) == ("10.00", NOW_MS + 1, "pi_1")
    assert await issue_of_payments(store, SELLER, NOW_MS + 6) == Issued()


async def test_what_is_returned_has_credit_notes(store: Store) -> None:
    """One for each refund and for a lost dispute, at the rate of the receipt; an open dispute has none."""
    await pay_ten(store)
    await tell(store, Refunded(3 * DOLLAR_NANO), "evt_1")
    assert await issue_of_payments(store, SELLER, NOW_MS) == Issued(receipts=1, credit_notes=1)
    dearer = Seller(SELLER.party, tax_label="VAT", tax_rate=25_000)
    await tell(store, Refunded(4 * DOLLAR_NANO), "evt_2")
    await tell(store, DISPUTED, "evt_3")
    assert await issue_of_payments(store, dearer, NOW_MS, "acct_a") == Issued(credit_notes=1)
    assert await issue_of_payments(store, dearer, NOW_MS, "acct_a") == Issued()
    await tell(store, DisputeClosed("dp_1", 6 * DOLLAR_NANO, "lost"), "evt_4")
    assert await issue_of_payments(store, dearer, NOW_MS) == Issued(credit_notes=1)
    *notes, receipt = await facts_of(store)
    assert [(note.receipt, note.total) for note in notes] == [
        (receipt.number, amount) for amount in ("3.00", "1.00", "6.00")
    ]
    assert {note.tax.words for note in notes if note.tax} == {"VAT 23%"}
    assert [note.number for note in notes] == ["EX-C-000001", "C-000002", "C-000003"]


async def test_a_statement_adds_up(store: Store) -> None:
    """Opening, each kind of movement, charges by class and closing; as `sum_entries` has them, and once."""
    await pay_ten(store)
    await give_credit(store, EMAIL, DOLLAR_NANO, "", NOW_MS)
    await spend(store, "r1", Usage(30, 40))
    await spend(store, "r2", Usage(20, 10))
    await refund_request(store, "r1", 50 * CENT_NANO, "a bad answer", COMMAND_LINE, NOW_MS)
    with pytest.raises(ControlError, match="2027-01 is not over"):
        await issue_statements(store, SELLER, MONTH, LATER_MS - 1)
    made = await asyncio.gather(*(issue_statements(store, SELLER, MONTH, LATER_MS) for _ in range(3)))
    assert sum([done.statements for done in made]) == 1
    [statement] = await facts_of(store)
    assert statement.rows() == [
        ("Opening balance", "0.00"),
        ("Card payments", "10.00"),
        ("Granted credit", "1.00"),
        ("Refunds of requests", "0.50"),
        ("Requests", "-2.00"),
    ]
    assert statement.charges == (ClassCharges("forte", 2, 50, 0, 50, 200 * CENT_NANO),)
    assert (
        statement.total_nano == (await sum_entries(store, "acct_a", month_span(MONTH))).closing_nano == 950 * CENT_NANO
    )
    assert statement.buyer == Party("Account acct_a")


async def test_what_is_recorded_late_is_on_the_next_statement(store: Store) -> None:
    """An entry of a month whose statement was issued before it was written."""
    await pay_ten(store)
    await issue_statements(store, SELLER, MONTH, LATER_MS)
    await give_credit(store, EMAIL, DOLLAR_NANO, "", NOW_MS)
    await give_credit(store, EMAIL, 2 * DOLLAR_NANO, "", LATER_MS)
    span = month_span("2027-02")
    assert (await issue_statements(store, SELLER, "2027-02", span.end_ms + GRACE_MS)).statements == 1
    _, statement = await facts_of(store)
    assert (statement.opening_nano, statement.total_nano) == (10 * DOLLAR_NANO, 13 * DOLLAR_NANO)
    assert statement.lines == (
        DocumentLine("Recorded after the statement EX-S-000001", DOLLAR_NANO),
        DocumentLine("Granted credit", 2 * DOLLAR_NANO),
    )


async def test_the_service_issues_what_is_due(store: Store) -> None:
    """Receipts at once, and the statements of a month when it is over; of months without a movement there are none."""
    await pay_ten(store)
    issuer = DocumentIssuer(store, SELLER, make_log(io.StringIO()))
    assert await issuer.look(LATER_MS - 1) == Issued(receipts=1)
    assert await issuer.look(LATER_MS) == Issued(statements=1)
    assert await issuer.look(month_span("2027-04").end_ms) == Issued()
    await give_credit(store, EMAIL, DOLLAR_NANO, "", month_span("2027-04").start_ms)
    assert await issuer.look(month_span("2027-06").end_ms) == Issued(statements=1)
    numbers = [one.number for one, _ in await search_documents(store, EMAIL.upper())]
    assert numbers == ["EX-S-000002", "EX-S-000001", "EX-R-000001"]
    assert [(one.subject, email) for one, email in await search_documents(store, " ex-s-000002")] == [
        ("2027-04", EMAIL)
    ]
    assert await search_documents(store, "nobody@example.org") == []


async def test_a_document_does_not_change(store: Store) -> None:
    """The database refuses it, and what the seller or the buyer is called later counts for later documents."""
    await pay_ten(store)
    await issue_of_payments(store, SELLER, NOW_MS)
    before = await rows_of(store, documents)
    for change in ("UPDATE documents SET facts = '{}'", "DELETE FROM documents"):
        with pytest.raises(StoreRefused):
            await run_sql(store, change)
    await set_buyer(store, "acct_a", BUYER, EMAIL, NOW_MS)
    await issue_of_payments(store, Seller(Party("Another")), NOW_MS)
    assert await rows_of(store, documents) == before


async def test_a_document_that_was_tampered_with_is_not_shown(store: Store) -> None:
    """Facts that do not have their hash are refused with the number of the document."""
    await pay_ten(store)
    await issue_of_payments(store, SELLER, NOW_MS)
    copy = "kind, 2, 'X', account_id, 'x', payment_id, issued_at, amount_nano, replace(facts, '10', '99'), digest"
    await run_sql(store, f"INSERT INTO documents SELECT {copy} FROM documents")
    [forged] = [one for one in await list_documents(store, "acct_a") if one.number == "X"]
    with pytest.raises(ControlError, match="The document X was changed"):
        forged.read()


@pytest.mark.parametrize(
    "buyer",
    [Party("x" * 201), Party("a", "\n".join("abcdefg")), Party("a\tb"), Party("", "an address"), Party("a", "", "\0")],
)
async def test_a_buyer_that_fits_no_document_is_refused(store: Store, buyer: Party) -> None:
    """Too long, too many lines, control characters, or an address without a name."""
    with pytest.raises(ControlError):
        await set_buyer(store, "acct_a", buyer, EMAIL, NOW_MS)
