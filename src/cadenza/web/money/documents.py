"""The documents of an account: a list, each as page and PDF, and what they call the buyer. Those of others are 404."""

import msgspec
from starlette.responses import Response

from cadenza.control.money.documents import find_buyer, get_document, list_documents, set_buyer
from cadenza.core.documents import Party
from cadenza.core.rates import Rate
from cadenza.ledger.documents import Document
from cadenza.web.errors import Missing
from cadenza.web.routes import JSON, Routes, endpoint, form, get, to_record
from cadenza.web.visit import Visit

PAGE = "/credit/documents"
PDFS = Rate(0.5, 20)  # for each account
NUMBER = "number"


class BuyerForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What documents that are issued later call the buyer. An empty name: only the id of the account."""

    name: str
    address: str = ""
    tax_id: str = ""


class DocumentView(msgspec.Struct, frozen=True):
    """A document. `amount` is what was paid or returned, or the closing balance; `sha256` is that of its facts."""

    number: str
    kind: str
    issued_at: str
    amount: str
    sha256: str
    subject: str
    currency: str = "USD"
    object: str = "document"


class DocumentList(msgspec.Struct, frozen=True):
    """The newest documents, newest first."""

    data: list[DocumentView]
    object: str = "list"


async def documents_page(visit: Visit, error: str = "", typed: BuyerForm | None = None) -> Response:
    return visit.page(
        "documents.html",
        documents=await list_documents(visit.store, visit.account.id),
        buyer=typed or await find_buyer(visit.store, visit.account.id),
        error=error,
    )


async def document_page(visit: Visit) -> Response:
    found = await _find(visit)
    return visit.page("document.html", document=found, facts=found.read(), page=PAGE)


async def pdf(visit: Visit) -> Response:
    return await respond_with_pdf(visit, await _find(visit))


async def get_documents(visit: Visit) -> DocumentList:
    found = await list_documents(visit.store, visit.account.id)
    return DocumentList([view_document(one) for one in found])


async def get_facts(visit: Visit) -> Response:
    found = await _find(visit)
    found.read()
    return Response(found.facts, media_type=JSON)


async def save_buyer(visit: Visit, given: BuyerForm) -> None:
    account, buyer = visit.account, Party(given.name, given.address, given.tax_id)
    await set_buyer(visit.store, account.id, buyer, account.email, visit.now_ms)


async def respond_with_pdf(visit: Visit, document: Document) -> Response:
    await visit.limit("pdf", PDFS, "You have fetched many PDFs. Try again in a minute.")
    content = await visit.context.pdf_queue.render(document)
    headers = {"content-disposition": f'attachment; filename="{document.number}.pdf"'}
    return Response(content, headers=headers, media_type="application/pdf")


def view_document(document: Document) -> DocumentView:
    return to_record(DocumentView, document, sha256=document.digest.hex())


async def _find(visit: Visit) -> Document:
    found = await get_document(visit.store, visit.path_param(NUMBER), visit.account.id)
    if found is None:
        raise Missing
    return found


ROUTES: Routes = (
    get(PAGE, documents_page),
    get(f"{PAGE}/{{number}}/pdf", pdf),
    get(f"{PAGE}/{{number}}", document_page),
    form(f"{PAGE}/buyer", save_buyer, PAGE, "saved", on_error=documents_page),
    endpoint(
        "GET", "/documents", "The newest receipts, statements and credit notes", get_documents, scope="credit:read"
    ),
    endpoint(
        "GET", "/documents/{number}", "The facts of a document, as they were issued", get_facts, scope="credit:read"
    ),
    endpoint("PUT", "/documents/buyer", "Set what documents call you from now on", save_buyer, scope="credit:write"),
)
