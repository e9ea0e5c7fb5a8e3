"""The messages between the service and the child processes that read documents, as MessagePack.

A task is a record and a body: the `file_data` of a file as a JSON string, or the bytes of a page or a file. A hostile
file may take over the child, so its replies are checked.
"""

from typing import Annotated

import msgspec

from cadenza.core.content import Content
from cadenza.core.grounding import FileSize
from cadenza.parts.grounding.files.questions import AskedOfFiles
from cadenza.parts.grounding.files.records import PartType, RankedDocument

Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_]{0,40}\Z")]  # logged, so it must not be text of a document


class TokenBudget(msgspec.Struct, frozen=True):
    """How many tokens all documents of a request may take together, and how many each of them may take in any case.

    `is_filled`: the tokens are few, so all of them are used, whatever the question needs.
    """

    tokens: int
    share_tokens: int
    is_filled: bool = False


class FileTask(Content, msgspec.Struct, frozen=True, tag=True):
    """Read a file that a client sent, and rank its passages."""

    name: str
    asked: AskedOfFiles
    budget: TokenBudget


class PageTask(Content, msgspec.Struct, frozen=True, tag=True):
    """Read a web page, and rank its passages."""

    url: str
    content_type: str
    asked: AskedOfFiles
    budget: TokenBudget


class MeasureTask(Content, msgspec.Struct, frozen=True, tag=True):
    """Read a file, and return how large it is."""

    name: str


class ParserFault(msgspec.Struct, frozen=True):
    """An exception of a parser: our module in which it was raised or passed, and its class."""

    module: Name
    error: Name


class Failed(Content, msgspec.Struct, frozen=True, tag=True):
    """A file or page that cannot be read, and why. `fault` if a parser failed in a way that is not foreseen.

    `part_type` is the content part that the file can be sent in instead.
    """

    reason: str
    fault: ParserFault | None = None
    part_type: PartType | None = None


class BadReply(Exception):
    """A reply of the wrong type for its task, or an inconsistent one."""


Task = FileTask | PageTask | MeasureTask
Reply = RankedDocument | FileSize | Failed
TASKS: msgspec.msgpack.Decoder[Task] = msgspec.msgpack.Decoder(Task)
_REPLIES: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


def decode_reply(task: Task, data: bytes | bytearray) -> Reply:
    try:
        reply = _REPLIES.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise BadReply from None
    is_expected = isinstance(reply, FileSize if isinstance(task, MeasureTask) else RankedDocument)
    if not (isinstance(reply, Failed) or (is_expected and _is_sound(reply))):
        raise BadReply
    return reply


def _is_sound(reply: Reply) -> bool:
    if not isinstance(reply, RankedDocument):
        return True
    sections = len(reply.labels)
    counted = len(reply.passage_counts) == len(reply.row_counts) == sections
    return counted and all(passage.section < sections for passage in reply.passages)
