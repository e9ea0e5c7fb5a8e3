"""Documents: a receipt for each payment, a credit note for what is returned of one, a statement for each month.

A receipt and its credit notes are issued right after the event of the payment, and every process of the service issues
what is missing, every ten minutes. Statements are issued once a month is over. Each is issued exactly once: under the
lock of the payment, and of the counter of its kind (ledger/documents.py).

A payment includes the tax: credit of the same amount is granted for it. An open dispute takes credit, and no document
is issued before it is lost. A refunded request gives back credit and no money: it is on the statement of its month. So
is what was dated in an earlier month and written after that month's statement, on a line of its own.
"""

import asyncio
import time
from functools import partial

import msgspec

from cadenza.control.account.accounts import get_account
from cadenza.control.money.payments import PaymentEvent, payment_ids
from cadenza.core.documents import (
    TITLES,
    DocumentFacts,
    DocumentLine,
    Party,
    Seller,
    number_text,
    split_tax,
)
from cadenza.core.errors import ControlError
from cadenza.core.spans import Span, month_of, month_span
from cadenza.ledger import documents, payments
from cadenza.ledger.documents import Document, DuePayment, NewDocument
from cadenza.ledger.payments import Payment, PaymentIds
from cadenza.observe import Log
from cadenza.store.store import Store, StoreRefused, StoreUnavailable, Transaction
from cadenza.store.tables import audit_events
from cadenza.store.tables.audit_events import AuditEvent

BATCH_MAX = 200
LOOK_EVERY_S = 600.0
GRACE_MS = 15 * 60 * 1000  # after a month: charges that waited for the store are written by then
FIELD_CHARS_MAX = 200
ADDRESS_LINES_MAX = 6
NUMBER_CHARS_MAX = 100
ORIGIN_LABELS = {
    "payment": "Card payments",
    "opening": "Opening credit",
    "voucher": "Vouchers",
    "grant": "Granted credit",
    "refund": "Refunds of requests",
    "late-end": "Corrected charges",
    "return": "Card payments returned",
    "dispute": "Disputed card payments",
    "correction": "Corrections",
    "expiry": "Expired credit",
    "debt": "Paid debts",
    "erasure": "Forfeited credit",
}  # in the order in which a statement has them


class Issued(msgspec.Struct):
    """How many documents were issued."""

    receipts: int = 0
    credit_notes: int = 0
    statements: int = 0

    def __bool__(self) -> bool:
        return any(msgspec.structs.astuple(self))


async def issue_of_payments(store: Store, seller: Seller, now_ms: int, account_id: str | None = None) -> Issued:
    """Issue the receipts and credit notes that are missing, of one account or of all."""
    done = Issued()
    while due := await documents.payments_due(store, account_id, BATCH_MAX):
        for one in due:
            receipts, notes = await store.transact(partial(_issue_of_payment, seller=seller, due=one, now_ms=now_ms))
            done.receipts += receipts
            done.credit_notes += notes
        if len(due) < BATCH_MAX:
            break
    return done


async def issue_of_event(store: Store, seller: Seller, provider: str, event: PaymentEvent, now_ms: int) -> None:
    """Issue what is due after an event of a payment."""
    found = await payments.find(store, payment_ids(provider, event.subject))
    if found:
        await issue_of_payments(store, seller, now_ms, found.account_id)


def _issue_of_payment(tx: Transaction, seller: Seller, due: DuePayment, now_ms: int) -> tuple[int, int]:
    """Issue the receipt of a payment, and a credit note for what was returned since the last one: how many of each."""
    payment = payments.lock(tx, PaymentIds(due.provider, due.id))
    if payment is None or payment.state in ("open", "expired"):
        return 0, 0
    receipt, is_new = documents.issue(tx, _receipt(tx, seller, payment, now_ms))
    returned_nano = payment.returned_nano - documents.returned_nano(tx, payment.account_id, payment.id)
    if returned_nano <= 0:
        return int(is_new), 0
    _, is_new_note = documents.issue(tx, _credit_note(tx, seller, payment, (receipt, returned_nano), now_ms))
    return int(is_new), int(is_new_note)


def _receipt(tx: Transaction, seller: Seller, payment: Payment, now_ms: int) -> NewDocument:
    def make(ordinal: int) -> DocumentFacts:
        return DocumentFacts(
            kind="receipt",
            number=number_text(seller, "receipt", ordinal),
            account_id=payment.account_id,
            issued_at=now_ms,
            seller=seller.party,
            buyer=_buyer(tx, payment.account_id),
            lines=(DocumentLine("Prepaid credit, by card", payment.amount_nano),),
            total_nano=payment.amount_nano,
            note=seller.note,
            tax=split_tax(seller, payment.amount_nano),
            payment_id=payment.id,
            payment_reference=payment.reference or "",
            moved_at=documents.paid_at(tx, payment.id) or payment.changed_at,
        )

    return NewDocument("receipt", payment.account_id, payment.id, make)


def _credit_note(
    tx: Transaction, seller: Seller, payment: Payment, corrects: tuple[Document, int], now_ms: int
) -> NewDocument:
    receipt, amount_nano = corrects

    def make(ordinal: int) -> DocumentFacts:
        tax = receipt.read().tax  # the rate at which it was paid
        then = Seller(Party(""), tax_label=tax.label, tax_rate=tax.rate) if tax else Seller(Party(""))
        return DocumentFacts(
            kind="credit-note",
            number=number_text(seller, "credit-note", ordinal),
            account_id=payment.account_id,
            issued_at=now_ms,
            seller=seller.party,
            buyer=_buyer(tx, payment.account_id),
            lines=(DocumentLine("Prepaid credit that was returned", amount_nano),),
            total_nano=amount_nano,
            note=seller.note,
            tax=split_tax(then, amount_nano),
            payment_id=payment.id,
            payment_reference=payment.reference or "",
            moved_at=payment.changed_at,
            receipt=receipt.number,
        )

    return NewDocument("credit-note", payment.account_id, f"{payment.id}:{payment.returned_nano}", make)


async def issue_statements(store: Store, seller: Seller, month: str, now_ms: int) -> Issued:
    """Issue the statements of a month that is over, to all accounts with an entry in it."""
    span = month_span(month)
    if now_ms < span.end_ms + GRACE_MS:
        raise ControlError(
            f"{month} is not over: its statements can be issued from 00:15 UTC on {month_of(span.end_ms)}-01 on."
        )
    done = Issued()
    for account_id in await documents.accounts_due(store, month, span):
        done.statements += await _issue_statement(store, seller, account_id, (month, span), now_ms)
    return done


async def _issue_statement(store: Store, seller: Seller, account_id: str, period: tuple[str, Span], now_ms: int) -> int:
    month, span = period
    sums, charges = await documents.read_month(store, account_id, span)
    before = await documents.find_before(store, account_id, month)
    opening_nano = before.amount_nano if before else sums.opening_nano
    moved = {
        origin: amount_nano for origin, amount_nano in sums.by_origin.items() if amount_nano and origin != "charge"
    }
    origins = [*(one for one in ORIGIN_LABELS if one in moved), *sorted(moved.keys() - ORIGIN_LABELS)]
    lines = [DocumentLine(ORIGIN_LABELS.get(one, one.capitalize()), moved[one]) for one in origins]
    if before and opening_nano != sums.opening_nano:
        label = f"Recorded after the statement {before.number}"
        lines.insert(0, DocumentLine(label, sums.opening_nano - opening_nano))
    if sums.charged_nano:
        lines.append(DocumentLine("Requests", -sums.charged_nano))
    if opening_nano + sum([line.amount_nano for line in lines]) != sums.closing_nano:
        raise AssertionError("a statement adds up")  # not `assert`: a wrong document could not be taken back

    def issue(tx: Transaction) -> int:
        def make(ordinal: int) -> DocumentFacts:
            return DocumentFacts(
                kind="statement",
                number=number_text(seller, "statement", ordinal),
                account_id=account_id,
                issued_at=now_ms,
                seller=seller.party,
                buyer=_buyer(tx, account_id),
                lines=tuple(lines),
                total_nano=sums.closing_nano,
                note=seller.note,
                month=month,
                opening_nano=opening_nano,
                charges=charges,
            )

        _, is_new = documents.issue(tx, NewDocument("statement", account_id, month, make))
        return int(is_new)

    return await store.transact(issue)


def _buyer(tx: Transaction, account_id: str) -> Party:
    """As its owner entered it. Otherwise the account has no name here: its address is not needed on a document."""
    found = documents.read_buyer(tx, account_id)
    return found if found and found.name else Party(f"Account {account_id}")


async def get_document(store: Store, number: str, account_id: str | None = None) -> Document | None:
    """The document with this number; None if it is not of this account."""
    if not number.isascii() or not number.isprintable() or len(number) > NUMBER_CHARS_MAX:
        return None
    found = await documents.find_number(store, number)
    return found if found and account_id in (None, found.account_id) else None


async def list_documents(store: Store, account_id: str) -> list[Document]:
    """The newest documents of an account, newest first."""
    return await documents.list_of_account(store, account_id)


async def search_documents(store: Store, text: str) -> list[tuple[Document, str]]:
    """Documents by their number, or those of the account with this address, each with the address of its account.

    Without a text, the newest of all accounts.
    """
    if not (text := text.strip()):
        return await documents.list_newest(store)
    if found := await get_document(store, text.upper()) or await get_document(store, text):
        return await documents.with_addresses(store, [found])
    try:
        account = await get_account(store, text)
    except ControlError:
        return []
    return [(one, account.email) for one in await documents.list_of_account(store, account.id)]


def describe_document(document: Document) -> str:
    """What a document is, in plain words."""
    title = TITLES[document.kind]
    return f"{title} of {document.subject}" if document.kind == "statement" else title


async def list_issued(store: Store, email: str | None, span: Span) -> list[Document]:
    """The documents that were issued in a span, of one account or of all, oldest first."""
    return await documents.list_issued(store, (await get_account(store, email)).id if email else None, span)


async def find_buyer(store: Store, account_id: str) -> Party:
    return await documents.find_buyer(store, account_id) or Party("")


async def set_buyer(store: Store, account_id: str, buyer: Party, by: str, now_ms: int) -> None:
    """Set what documents call the buyer from now on. An empty name removes it."""
    lines = [line.strip() for line in buyer.address.splitlines() if line.strip()]
    fields = [buyer.name.strip(), *lines, buyer.tax_id.strip()]
    if any(len(one) > FIELD_CHARS_MAX or not one.isprintable() for one in fields) or len(lines) > ADDRESS_LINES_MAX:
        raise ControlError(
            f"Name, tax id and each line of the address have at most {FIELD_CHARS_MAX} characters, "
            f"and an address has at most {ADDRESS_LINES_MAX} lines."
        )
    if not fields[0] and any(fields):
        raise ControlError("Write the name too, or leave all fields empty.")

    def change(tx: Transaction) -> None:
        documents.set_buyer(tx, account_id, Party(fields[0], "\n".join(lines), fields[-1]))
        audit_events.add(tx, AuditEvent(now_ms, by, "account.buyer", account_id))

    await store.transact(change)


class DocumentIssuer:
    """Issues what is due, in every process of the service. A store that fails is logged, and asked again later."""

    def __init__(self, store: Store, seller: Seller, log: Log) -> None:
        self._store = store
        self._seller = seller
        self._log = log

    async def run(self) -> None:
        """Issue until cancelled."""
        while True:
            try:
                await self.look(time.time_ns() // 1_000_000)
            except (StoreUnavailable, StoreRefused) as error:
                self._log.warning("documents were not issued", reason=str(error))
            await asyncio.sleep(LOOK_EVERY_S)

    async def look(self, now_ms: int) -> Issued:
        """Issue what is missing of payments, and the statements of the months that are over since the last time.

        The first statements are those of the last month: earlier ones are issued by the command line.
        """
        done = await issue_of_payments(self._store, self._seller, now_ms)
        last = month_of(month_span(month_of(now_ms - GRACE_MS)).start_ms - 1)
        through = await documents.statements_through(self._store)
        month = last if through is None else month_of(month_span(through).end_ms)
        while month <= last:
            done.statements += (await issue_statements(self._store, self._seller, month, now_ms)).statements
            await self._store.transact(partial(documents.set_through, month=month))
            month = month_of(month_span(month).end_ms)
        if done:
            self._log.info("documents were issued", **msgspec.structs.asdict(done))
        return done
