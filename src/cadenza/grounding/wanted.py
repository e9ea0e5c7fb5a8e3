"""Which parts of grounding apply to a request: the files, the account's notes, and web search.

The request header `x-cadenza-grounding: none` turns notes and search off. It is about privacy, so any other value is
refused: a typing error must not leave them on.
"""

import msgspec

from cadenza.core.chat import ChatRequest
from cadenza.core.errors import InvalidRequest
from cadenza.core.records import Principal
from cadenza.grounding.search.web_search import WebSearch
from cadenza.http.exchange import Request

SWITCH = b"x-cadenza-grounding"
OFF = b"none"
UNKNOWN_VALUE = (
    "x-cadenza-grounding: the only value that a request can have is `none`, which turns memory and search off. "
    "Leave the header out to have them."
)


class GroundingOptions(msgspec.Struct, frozen=True):
    """Which parts the operator has turned on. Web search has settings of its own."""

    attachments: bool = True
    memory: bool = True


class Wanted(msgspec.Struct, frozen=True):
    """The parts that apply to one request."""

    files: bool
    memory: bool
    search: bool

    def __bool__(self) -> bool:
        return self.files or self.memory or self.search


NOTHING_WANTED = Wanted(files=False, memory=False, search=False)


def find_wanted(
    chat: ChatRequest, principal: Principal, request: Request, settings: GroundingOptions, search: WebSearch | None
) -> Wanted:
    """The parts that apply; for most requests, and for all with tools, it is NOTHING_WANTED."""
    if chat.tools:
        return NOTHING_WANTED
    wants_memory = principal.has_notes and settings.memory
    wants_search = principal.may_search and search is not None and search.is_ready()
    if not (wants_memory or wants_search or chat.files):
        return NOTHING_WANTED
    if (wants_memory or wants_search) and is_turned_off(request):
        wants_memory = wants_search = False
    files = bool(chat.files) and settings.attachments
    return Wanted(files=files, memory=wants_memory, search=wants_search) or NOTHING_WANTED


def is_turned_off(request: Request) -> bool:
    """Whether the header says `none`; 400 if it has another value. An empty value is ignored."""
    if SWITCH not in request.headers:
        return False
    values = {one.strip().lower() for name, value in request.fields if name == SWITCH for one in value.split(b",")}
    values.discard(b"")
    if values - {OFF}:
        raise InvalidRequest(UNKNOWN_VALUE)
    return bool(values)
