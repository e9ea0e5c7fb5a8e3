"""The tasks and replies between the service and the child processes that translate, parse and count large bodies.

A task is a Task as MessagePack, and the body. A reply is one of the records below as MessagePack. Raw JSON comes back
as spans, so that a body crosses the socket once, and the service copies nothing.
"""

from typing import Literal, Protocol

import msgspec

from cadenza.core.chat import Media, UserQuestion
from cadenza.core.content import Content

Span = tuple[int, int]  # from, to: in the body, or beyond its end in `extra`


class Task(msgspec.Struct, frozen=True):
    """What the child does with a body. To count, it also gets the text of the character, to translate the protocol."""

    kind: Literal["parse", "count", "translate"]
    character: str = ""
    protocol: str = ""


class Parsed(Content, msgspec.Struct, frozen=True, tag=True):
    """A valid request: the fields of a ChatRequest, with spans instead of raw JSON."""

    model: str | None
    messages: list[Span]
    stream: bool
    max_tokens: int | None
    sampling: dict[str, Span]
    tools: dict[str, Span]
    leading_system: int
    system: Span
    needs: frozenset[str]
    question: UserQuestion | None
    files: list[tuple[int, int, int, str, Span]]  # the fields of each FilePart
    media: Media
    text_chars: int  # of all that is counted, at least
    extra_fields: dict[str, Span]
    extra: memoryview  # what is not in the body as it came
    wants_cost: bool


class InvalidBody(Content, msgspec.Struct, frozen=True, tag=True):
    """An invalid request, and the message of its 400."""

    message: str


class Counted(msgspec.Struct, frozen=True, tag=True):
    """The tokens of the character and the texts of a valid request."""

    tokens: int


class Translated(Content, msgspec.Struct, frozen=True, tag=True):
    """The body of a request in another protocol as that of a chat, and what the reply needs of it, as JSON."""

    chat: memoryview
    kept: bytes = b"{}"


class Translate(Protocol):
    """Translates the body of a request; InvalidRequest if it cannot, TooManySteps if it takes more than these."""

    def __call__(self, body: bytes | bytearray, steps_max: float, /) -> Translated: ...


Reply = Parsed | InvalidBody | Counted | Translated
TASKS = msgspec.msgpack.Decoder(Task)
REPLIES: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)
