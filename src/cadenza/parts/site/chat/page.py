"""The chat page, and what its script asks for besides replies. Conversations are kept by the browser, never here."""

import msgspec
from starlette.responses import Response

from cadenza.core.content import Content
from cadenza.core.public import to_record
from cadenza.core.rates import Rate
from cadenza.ledger.statement import find_reply_cost
from cadenza.parts.site.chat.offer import chat_switches, class_terms, input_prices, offer_of
from cadenza.parts.site.chat.relay import ChatCost
from cadenza.parts.site.chat.stream import FileMeasured
from cadenza.parts.site.errors import BadForm, CreditNeeded, Missing
from cadenza.parts.site.routes import Routes, endpoint, get
from cadenza.parts.site.visit import Visit

RENDER_RATE = Rate(2.0, 40)  # for each account
TEXTS_MAX = 100
SUGGESTIONS = (
    "Explain photosynthesis in one sentence.",
    "List three tips for learning to play the piano.",
    "Write a Python function that adds two numbers.",
)


class RenderOrder(Content, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Markdown texts, at most 64 KiB together."""

    texts: list[str]


class RenderedTexts(Content, msgspec.Struct, frozen=True):
    """The HTML of each text, safe to insert into a page."""

    data: list[str]
    object: str = "list"


async def chat_page(visit: Visit) -> Response:
    """The page. Its script fills in the conversations from the browser's storage."""
    context = visit.context
    context.markdown.prepare(visit.account.id)
    offer, catalogue = offer_of(visit.service.gateway), visit.service.gateway.snapshot.catalogue
    return visit.page(
        "chat.html",
        classes=catalogue.ids,
        terms=class_terms(catalogue, visit.now_ms),
        input_prices=input_prices(catalogue, visit.now_ms),
        suggestions=SUGGESTIONS,
        preferred=catalogue.preferred(visit.account.preferred_class),
        offer=offer,
        switches=chat_switches(offer, visit.account),
    )


async def serve_chat(_visit: Visit) -> None:
    """Listed for its description: the gateway serves this path itself (chat/stream.py)."""
    raise Missing


async def measure(_visit: Visit) -> FileMeasured:
    """Listed for its description, like the chat."""
    raise Missing


async def render(visit: Visit, order: RenderOrder) -> RenderedTexts:
    """For accounts that can pay for an answer: rendering takes CPU time. The page shows plain text to others."""
    if visit.account.balance_nano < visit.service.gateway.snapshot.catalogue.least_nano:
        raise CreditNeeded("Markdown is rendered for accounts with credit. Add credit first.")
    await visit.limit("render", RENDER_RATE, "Too many texts to render at once. Try again in a moment.")
    if len(order.texts) > TEXTS_MAX:
        raise BadForm(f"At most {TEXTS_MAX} texts at once.")
    return RenderedTexts([await _render(visit, text) for text in order.texts])


async def cost(visit: Visit) -> ChatCost:
    """What a stopped reply cost: its stream ended before the usage event, perhaps before it named the reply."""
    found = await find_reply_cost(visit.store, visit.account.id, visit.path_param("reply_id"))
    if found is None:
        raise Missing("There is no such reply, or it has not ended yet.")
    return to_record(ChatCost, found)


async def _render(visit: Visit, text: str) -> str:
    markdown = visit.context.markdown.stream(visit.account.id)
    markdown.feed(text)
    return "".join(rendered.html for rendered in await markdown.render(is_end=True))


ROUTES: Routes = (
    get("/chat", chat_page),
    endpoint(
        "POST",
        "/chat",
        "Ask for a reply. The answer is a stream of events: start, text, block, sources, finish, usage, then [DONE]",
        serve_chat,
        body="ChatRequest",
        media_type="text/event-stream",
    ),
    endpoint("POST", "/chat/file", "Measure a file before it is sent. The body is its bytes, `name` its name", measure),
    endpoint("GET", "/chat/{reply_id}/cost", "What a reply cost, by its id or by its x-request-id", cost),
    endpoint("POST", "/render", "Render Markdown to clean HTML", render),
)
