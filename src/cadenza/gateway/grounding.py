"""What may put reference material beside the messages of a chat. The core adds none: `NoGrounder`.

The request header `x-cadenza-grounding` turns notes off, search, or both. It is about privacy, so an unknown value is
refused, whatever is installed: a typing error must not leave them on.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from cadenza.core.chat import ChatRequest
from cadenza.core.errors import InvalidRequest
from cadenza.core.grounding import NO_GROUNDING, FileSize, Grounding
from cadenza.core.records import Principal
from cadenza.gateway.messages import CUSTOM_TOOLS
from cadenza.gateway.request import ApiRequest
from cadenza.http.exchange import Request
from cadenza.routing.catalogue import Catalogue, ServedClass, routes_that_take
from cadenza.routing.prompt import PromptSize

GROUNDING_HEADER = b"x-cadenza-grounding"
TURNED_OFF = {b"none": {"memory", "search"}, b"memory=off": {"memory"}, b"search=off": {"search"}}
UNKNOWN_VALUE = (
    "x-cadenza-grounding: a request can have the values `memory=off`, `search=off`, and `none`, which turns both off. "
    "Leave the header out to have both."
)


class Wanted(msgspec.Struct, frozen=True):
    """What applies to one request."""

    files: bool
    memory: bool
    search: bool


class SearchTerms(msgspec.Struct, frozen=True):
    """The engine and price of a search, and the quota of an account: `per_day` in a burst and in each day."""

    engine: str
    price_nano: int = 0
    per_day: int = 1000


class GroundingOffer(msgspec.Struct, frozen=True):
    """What this service offers, whether or not an account uses it.

    `measure` says how large a file of an account is, by its name: 400 if it cannot be read, 429 if not now.
    """

    memory: bool = False
    search: SearchTerms | None = None
    measure: Callable[[str, str, bytes], Awaitable[FileSize]] | None = None

    def __bool__(self) -> bool:
        """Whether it is anything."""
        return bool(self.memory or self.search or self.measure)


class Grounder(Protocol):
    """Adds reference material to requests."""

    reads_files: bool  # those of requests without tools; else they go to a model that takes them
    files_note: str  # why not

    def wanted(self, chat: ChatRequest, principal: Principal, request: Request, /) -> Wanted | None:
        """What applies to this request: for most, nothing."""

    async def ground(
        self, request: ApiRequest, served: ServedClass, chat: ChatRequest, prompt: PromptSize, wanted: Wanted, /
    ) -> Grounding:
        """Gather what is wanted, charge what it costs, and add it to the prompt's size."""

    def offer(self) -> GroundingOffer: ...


class NoGrounder:
    """Adds nothing."""

    reads_files = False
    files_note = " Without tools, files are read here with the extra 'grounding', which is not installed."

    def wanted(self, _chat: ChatRequest, _principal: Principal, _request: Request, /) -> Wanted | None:
        return None

    async def ground(
        self, _request: ApiRequest, _served: ServedClass, _chat: ChatRequest, _prompt: PromptSize, _wanted: Wanted, /
    ) -> Grounding:
        return NO_GROUNDING

    def offer(self) -> GroundingOffer:
        return GroundingOffer()


def read_turned_off(request: Request) -> set[str]:
    """What the header turns off; 400 if it has an unknown value. An empty value is ignored."""
    if GROUNDING_HEADER not in request.headers:
        return set()
    lists = [value.lower() for name, value in request.fields if name == GROUNDING_HEADER]
    values = {word.strip() for words in lists for word in words.split(b",")}
    values.discard(b"")
    if values - TURNED_OFF.keys():
        raise InvalidRequest(UNKNOWN_VALUE)
    return {part for value in values for part in TURNED_OFF[value]}


def with_able_routes(served: ServedClass, chat: ChatRequest, grounder: Grounder, catalogue: Catalogue) -> ServedClass:
    """The class with only those of its routes that take the parts and tools of the request; 400 if there is none."""
    needs, note = chat.needs, ""
    if chat.files and not grounder.reads_files:
        needs, note = needs | {"files"}, grounder.files_note
    elif chat.tools and needs != CUSTOM_TOOLS:
        note = " Grounding does not apply with tools: such parts go to the model unchanged."
    plan = routes_that_take(served.plan, needs, catalogue.able_classes(needs), note)
    return msgspec.structs.replace(served, plan=plan)
