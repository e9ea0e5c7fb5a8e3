"""Documents for operators: found by their number or by the address of their account. Unknown numbers are 404."""

import msgspec
from starlette.responses import Response

from cadenza.control.money.documents import get_document, search_documents
from cadenza.ledger.documents import Document
from cadenza.web.errors import Missing
from cadenza.web.money.documents import DocumentView, respond_with_pdf, view_document
from cadenza.web.routes import Routes, endpoint, get
from cadenza.web.visit import Visit

PAGE = "/operator/documents"
SEARCH_CHARS_MAX = 254


class DocumentSearch(msgspec.Struct, frozen=True):
    """The number of a document, or the address of an account. Empty: the newest of all accounts."""

    search: str = ""


class FoundDocument(msgspec.Struct, frozen=True):
    """A document and the address of its account."""

    email: str
    document: DocumentView


class FoundDocuments(msgspec.Struct, frozen=True):
    """Documents, newest first."""

    data: list[FoundDocument]
    object: str = "list"


async def documents_page(visit: Visit) -> Response:
    search = visit.query(DocumentSearch).search[:SEARCH_CHARS_MAX]
    found = await search_documents(visit.store, search)
    return visit.page("operator/documents.html", found=found, search=search, is_on=visit.context.settings.seller)


async def document_page(visit: Visit) -> Response:
    found = await _find(visit)
    return visit.page("document.html", document=found, facts=found.read(), page=PAGE)


async def pdf(visit: Visit) -> Response:
    return await respond_with_pdf(visit, await _find(visit))


async def get_documents(visit: Visit, asked: DocumentSearch) -> FoundDocuments:
    found = await search_documents(visit.store, asked.search[:SEARCH_CHARS_MAX])
    return FoundDocuments([FoundDocument(email, view_document(one)) for one, email in found])


async def _find(visit: Visit) -> Document:
    found = await get_document(visit.store, visit.path_param("number"))
    if found is None:
        raise Missing
    return found


ROUTES: Routes = (
    get(PAGE, documents_page),
    get(f"{PAGE}/{{number}}/pdf", pdf),
    get(f"{PAGE}/{{number}}", document_page),
    endpoint("GET", PAGE, "Find documents by number or account", get_documents, scope="operator.credit:read"),
)
