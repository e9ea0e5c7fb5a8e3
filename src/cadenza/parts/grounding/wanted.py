"""Which parts of grounding apply to a request: the files, the account's notes, and web search.

The request header `x-cadenza-grounding` turns notes off, search, or both. It is about privacy, so an unknown value is
refused: a typing error must not leave them on.
"""

import msgspec

from cadenza.core.chat import ChatRequest
from cadenza.core.errors import InvalidRequest
from cadenza.core.records import Principal
from cadenza.http.exchange import Request
from cadenza.parts.grounding.search.web_search import WebSearch

SWITCH = b"x-cadenza-grounding"
TURNED_OFF = {b"none": {"memory", "search"}, b"memory=off": {"memory"}, b"search=off": {"search"}}
UNKNOWN_VALUE = (
    "x-cadenza-grounding: a request can have the values `memory=off`, `search=off`, and `none`, which turns both off. "
    "Leave the header out to have both."
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
    wants_search = principal.may_search and search is not None
    if not (wants_memory or wants_search or chat.files):
        return NOTHING_WANTED
    if wants_memory or wants_search:
        turned_off = read_turned_off(request)
        wants_memory = wants_memory and "memory" not in turned_off
        wants_search = wants_search and "search" not in turned_off
    files = bool(chat.files) and settings.attachments
    return Wanted(files=files, memory=wants_memory, search=wants_search) or NOTHING_WANTED


def read_turned_off(request: Request) -> set[str]:
    """The parts that the header turns off; 400 if it has an unknown value. An empty value is ignored."""
    if SWITCH not in request.headers:
        return set()
    values = {one.strip().lower() for name, value in request.fields if name == SWITCH for one in value.split(b",")}
    values.discard(b"")
    if values - TURNED_OFF.keys():
        raise InvalidRequest(UNKNOWN_VALUE)
    return {part for value in values for part in TURNED_OFF[value]}
