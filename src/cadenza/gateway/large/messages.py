"""The messages between the service and the child processes that parse and count large bodies.

A task is a head of fixed size, the text of the character if it is to be counted, and the body. A reply is its length,
then one of the records below as MessagePack. Raw JSON comes back as spans, so that a body crosses the socket once, and
the service copies nothing.
"""

import struct
from enum import IntEnum

import msgspec

TASK = struct.Struct("<BII")  # the kind, and how many bytes the character and the body have
REPLY = struct.Struct("<I")  # the number of bytes of the record
Span = tuple[int, int]  # from, to: in the body, or beyond its end in `extra`


class Kind(IntEnum):
    """What the child is to do with a body."""

    PARSE = 1
    COUNT = 2


class Limits(msgspec.Struct, frozen=True):
    """What a child may use. It gets them on its command line, as JSON."""

    cpu_s: int  # for one task
    memory_bytes: int  # of address space


class Parsed(msgspec.Struct, frozen=True, tag=True):
    """A valid request: the fields of a ChatRequest, with spans instead of raw JSON."""

    model: str | None
    messages: list[Span]
    stream: bool
    max_tokens: int | None
    sampling: dict[str, Span]
    tools: dict[str, Span]
    leading_system: int
    system: Span
    has_custom_tools: bool
    text_chars: int  # of all texts together
    extra: memoryview  # what is not in the body as it came


class Refused(msgspec.Struct, frozen=True, tag=True):
    """An invalid request, and the message of its 400."""

    message: str


class Counted(msgspec.Struct, frozen=True, tag=True):
    """The tokens of the texts of a valid request, and those of the character."""

    tokens: int
    character_tokens: int


Reply = Parsed | Refused | Counted
REPLIES: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)
