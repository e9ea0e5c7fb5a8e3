"""The rows of documents: numbered without gaps in each kind, each issued once for its subject, and never changed.

The number is taken in the transaction that writes the document, under the lock of the counter of its kind: a document
that is not written leaves no gap. The database refuses a second document of a kind about the same subject, and every
change of one. The subject of a receipt is its payment, that of a credit note its payment and the sum that was returned
so far, and that of a statement its month.
"""

from collections.abc import Callable

import msgspec
from sqlalchemy import Text, bindparam, cast, insert, or_, select, text, update

from cadenza.core.documents import (
    ClassCharges,
    DocumentFacts,
    DocumentKind,
    Party,
    decode_facts,
    digest_facts,
    encode_facts,
)
from cadenza.core.errors import ControlError
from cadenza.core.spans import Span
from cadenza.ledger.statement import PeriodSums, sum_entries
from cadenza.store.schema import accounts, buyers, document_counters, documents, entries
from cadenza.store.statements import Statement, total
from cadenza.store.store import Row, Store, StoreRefused, Transaction

SHOWN = 50


class Document(msgspec.Struct, frozen=True):
    """A document that was issued. `ordinal` counts the documents of its kind; `number` is what is written on it."""

    kind: DocumentKind
    ordinal: int
    number: str
    account_id: str
    subject: str
    payment_id: str | None
    issued_at: int
    amount_nano: int
    facts: str
    digest: bytes

    def read(self) -> DocumentFacts:
        """The facts. ControlError if they are not those that were issued."""
        if digest_facts(self.facts) != self.digest:
            raise ControlError(f"The document {self.number} was changed in the store after it was issued.")
        return decode_facts(self.facts)


class NewDocument(msgspec.Struct, frozen=True):
    """A document to issue: what it is about, and a function that makes its facts from its ordinal."""

    kind: DocumentKind
    account_id: str
    subject: str
    make: Callable[[int], DocumentFacts]


class DuePayment(msgspec.Struct, frozen=True):
    """A payment without its receipt, or without a credit note for what was returned."""

    id: str
    provider: str


COLUMNS = Document.__struct_fields__
_DOCUMENT = [documents.c[name] for name in COLUMNS]
ADD = Statement(insert(documents), *COLUMNS)
LOCK_COUNTER = Statement(
    text(
        "INSERT INTO document_counters (kind, ordinal) VALUES (:kind, 0)"
        " ON CONFLICT (kind) DO UPDATE SET ordinal = document_counters.ordinal RETURNING ordinal"
    )
)
COUNT = Statement(
    update(document_counters).where(document_counters.c.kind == bindparam("of")).values(ordinal=bindparam("now_is"))
)
FIND = Statement(
    select(*_DOCUMENT).where(
        documents.c.kind == bindparam("kind"),
        documents.c.account_id == bindparam("account"),
        documents.c.subject == bindparam("subject"),
    )
)
BY_NUMBER = Statement(select(*_DOCUMENT).where(documents.c.number == bindparam("number")))
_NEWEST = (documents.c.issued_at.desc(), documents.c.kind, documents.c.ordinal.desc())
_CHOSEN = (
    or_(cast(bindparam("account"), Text).is_(None), documents.c.account_id == bindparam("account")),
    documents.c.issued_at >= bindparam("start"),
    documents.c.issued_at < bindparam("end"),
)
OF_ACCOUNT = Statement(
    select(*_DOCUMENT)
    .where(documents.c.account_id == bindparam("account"))
    .order_by(*_NEWEST)
    .limit(bindparam("count"))
)
NEWEST = Statement(
    select(*_DOCUMENT, accounts.c.email)
    .join_from(documents, accounts, documents.c.account_id == accounts.c.id)
    .order_by(*_NEWEST)
    .limit(bindparam("count"))
)
ADDRESS = Statement(select(accounts.c.email).where(accounts.c.id == bindparam("account")))
CHOSEN = Statement(
    select(*_DOCUMENT).where(*_CHOSEN).order_by(documents.c.issued_at, documents.c.kind, documents.c.ordinal)
)
RETURNED = Statement(
    select(total(documents.c.amount_nano)).where(
        documents.c.account_id == bindparam("account"),
        documents.c.kind == "credit-note",
        documents.c.payment_id == bindparam("payment"),
    )
)
BEFORE = Statement(  # months are written so that they sort as text, also by the collations of Postgres
    select(*_DOCUMENT)
    .where(
        documents.c.account_id == bindparam("account"),
        documents.c.kind == "statement",
        documents.c.subject < bindparam("month"),
    )
    .order_by(documents.c.subject.desc())
    .limit(1)
)
_DUE = """
    SELECT p.id, p.provider FROM payments p
    WHERE {of_account} p.state NOT IN ('open', 'expired')
    AND (NOT EXISTS (
        SELECT 1 FROM documents d
        WHERE d.kind = 'receipt' AND d.account_id = p.account_id AND d.subject = p.id
    ) OR (p.returned_nano > 0 AND NOT EXISTS (
        SELECT 1 FROM documents d
        WHERE d.kind = 'credit-note' AND d.account_id = p.account_id AND d.subject = p.id || ':' || p.returned_nano
    )))
    ORDER BY p.created_at, p.id LIMIT :count"""
DUE = Statement(text(_DUE.format(of_account="")))
DUE_OF_ACCOUNT = Statement(text(_DUE.format(of_account="p.account_id = :account AND")))
MOVED = Statement(  # reads all entries of the month: there is no index on their times
    text("""
    SELECT DISTINCT e.account_id FROM entries e
    WHERE e.created_at >= :start AND e.created_at < :end AND NOT EXISTS (
        SELECT 1 FROM documents d
        WHERE d.kind = 'statement' AND d.account_id = e.account_id AND d.subject = :month
    ) ORDER BY e.account_id""")
)
CHARGES = Statement(
    text("""
    SELECT class_id, SUM(requests), SUM(prompt_tokens), SUM(cached_tokens), SUM(completion_tokens), SUM(charged_nano)
    FROM (
        SELECT u.class_id, COUNT(*) AS requests, SUM(u.prompt_tokens) AS prompt_tokens,
        SUM(u.cached_tokens) AS cached_tokens, SUM(u.completion_tokens) AS completion_tokens,
        -SUM(e.amount_nano) AS charged_nano
        FROM entries e JOIN usage u ON u.completion_id = e.completion_id
        WHERE e.account_id = :account AND e.kind = 'charge' AND e.created_at >= :start AND e.created_at < :end
        GROUP BY 1
        UNION ALL
        SELECT class_id, requests, prompt_tokens, cached_tokens, completion_tokens, charged_nano FROM usage_days
        WHERE account_id = :account AND charged_at >= :start AND charged_at < :end
    ) metered GROUP BY 1 ORDER BY 1""")
)
PAID_AT = Statement(select(entries.c.created_at).where(entries.c.source == bindparam("payment")))
THROUGH = Statement(select(document_counters.c.through).where(document_counters.c.kind == "statement"))
SET_THROUGH = Statement(
    text("UPDATE document_counters SET through = :month WHERE kind = 'statement' AND COALESCE(through, '') < :month")
)
BUYER = Statement(
    select(buyers.c.name, buyers.c.address, buyers.c.tax_id).where(buyers.c.account_id == bindparam("account"))
)
SET_BUYER = Statement(
    text(
        "INSERT INTO buyers (account_id, name, address, tax_id) VALUES (:account, :name, :address, :tax_id)"
        " ON CONFLICT (account_id) DO UPDATE SET name = :name, address = :address, tax_id = :tax_id"
    )
)


def issue(tx: Transaction, new: NewDocument) -> tuple[Document, bool]:
    """Issue a document, unless there is one about its subject. Return it, and whether it is new."""
    [last] = tx.row(LOCK_COUNTER, {"kind": new.kind}) or [0]
    found = tx.row(FIND, {"kind": new.kind, "account": new.account_id, "subject": new.subject})
    if found:
        return Document(*found), False
    ordinal = int(last) + 1
    facts = new.make(ordinal)
    assert (facts.kind, facts.account_id) == (new.kind, new.account_id)
    encoded = encode_facts(facts)
    document = Document(
        new.kind,
        ordinal,
        facts.number,
        new.account_id,
        new.subject,
        facts.payment_id or None,
        facts.issued_at,
        facts.total_nano,
        encoded,
        digest_facts(encoded),
    )
    tx.change(COUNT, {"of": new.kind, "now_is": ordinal})
    tx.change(ADD, msgspec.structs.asdict(document))
    return document, True


def find_issued(tx: Transaction, kind: DocumentKind, account_id: str, subject: str) -> Document | None:
    return _document(tx.row(FIND, {"kind": kind, "account": account_id, "subject": subject}))


def returned_nano(tx: Transaction, account_id: str, payment_id: str) -> int:
    """What the credit notes about a payment add up to."""
    row = tx.row(RETURNED, {"account": account_id, "payment": payment_id})
    return int(row[0]) if row else 0


def paid_at(tx: Transaction, payment_id: str) -> int | None:
    """When the credit of a payment was added; None if all of it had been returned before."""
    row = tx.row(PAID_AT, {"payment": payment_id})
    return None if row is None else int(row[0])


def read_buyer(tx: Transaction, account_id: str) -> Party | None:
    row = tx.row(BUYER, {"account": account_id})
    return None if row is None else Party(*row)


def set_buyer(tx: Transaction, account_id: str, buyer: Party) -> None:
    tx.change(SET_BUYER, {"account": account_id, **msgspec.structs.asdict(buyer)})


def set_through(tx: Transaction, month: str) -> None:
    """Store that the statements of this month were issued to all accounts."""
    tx.row(LOCK_COUNTER, {"kind": "statement"})
    tx.change(SET_THROUGH, {"month": month})


async def find_buyer(store: Store, account_id: str) -> Party | None:
    row = await store.row(BUYER, {"account": account_id})
    return None if row is None else Party(*row)


async def find_number(store: Store, number: str) -> Document | None:
    return _document(await store.row(BY_NUMBER, {"number": number}))


async def find_before(store: Store, account_id: str, month: str) -> Document | None:
    """The last statement about a month before this one."""
    return _document(await store.row(BEFORE, {"account": account_id, "month": month}))


async def list_of_account(store: Store, account_id: str, count: int = SHOWN) -> list[Document]:
    """Newest first."""
    return [Document(*row) for row in await store.rows(OF_ACCOUNT, {"account": account_id, "count": count})]


async def list_newest(store: Store, count: int = SHOWN) -> list[tuple[Document, str]]:
    """The newest documents of all accounts, each with the address of its account."""
    return [(Document(*row[:-1]), row[-1]) for row in await store.rows(NEWEST, {"count": count})]


async def with_addresses(store: Store, found: list[Document]) -> list[tuple[Document, str]]:
    """Documents, each with the address of its account."""
    rows = [await store.row(ADDRESS, {"account": one.account_id}) for one in found]
    return [(one, row[0] if row else "") for one, row in zip(found, rows, strict=True)]


async def list_issued(store: Store, account_id: str | None, span: Span) -> list[Document]:
    """The documents that were issued in a span, oldest first."""
    values = {"account": account_id, "start": span.start_ms, "end": span.end_ms}
    return [Document(*row) for row in await store.rows(CHOSEN, values, is_long=True)]


async def payments_due(store: Store, account_id: str | None, count: int) -> list[DuePayment]:
    if account_id is None:
        rows = await store.rows(DUE, {"count": count}, is_long=True)
    else:
        rows = await store.rows(DUE_OF_ACCOUNT, {"count": count, "account": account_id})
    return [DuePayment(*row) for row in rows]


async def accounts_due(store: Store, month: str, span: Span) -> list[str]:
    """Accounts with an entry in the month and without its statement."""
    values = {"month": month, "start": span.start_ms, "end": span.end_ms}
    return [row[0] for row in await store.rows(MOVED, values, is_long=True)]


async def read_month(store: Store, account_id: str, span: Span) -> tuple[PeriodSums, tuple[ClassCharges, ...]]:
    """The sums of an account's month, and its charges by class. StoreRefused if an entry was added between the two."""
    sums = await sum_entries(store, account_id, span)
    values = {"account": account_id, "start": span.start_ms, "end": span.end_ms}
    rows = await store.rows(CHARGES, values, is_long=True)
    charges = tuple([ClassCharges(row[0], *map(int, row[1:])) for row in rows])
    if sum([one.amount_nano for one in charges]) != sums.charged_nano:
        raise StoreRefused("A request of the month was charged while its statement was made: try again.")
    return sums, charges


async def statements_through(store: Store) -> str | None:
    """The last month whose statements the service has issued to all accounts."""
    row = await store.row(THROUGH, {})
    return None if row is None else row[0]


def _document(row: Row | None) -> Document | None:
    return None if row is None else Document(*row)
