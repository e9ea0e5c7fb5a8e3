"""What goes to the child of code_child.py, and what comes back."""

from typing import Any

import msgspec

from cadenza.core.content import Content


class PatternTask(Content, msgspec.Struct, frozen=True, tag="pattern"):
    """Whether a pattern matches the text, which is the body."""

    pattern: str
    flags: int
    is_full: bool


class SchemaTask(Content, msgspec.Struct, frozen=True, tag="schema"):
    """Whether a schema accepts the JSON of the body."""

    schema: Any


class CodeTask(Content, msgspec.Struct, frozen=True, tag="code"):
    """Run the code, which is the body, then call its function with each tuple of arguments."""

    function: str
    calls: tuple[tuple[Any, ...], ...]


class Matched(Content, msgspec.Struct, frozen=True, tag="matched"):
    """Whether it matches, and if not, why."""

    is_match: bool
    reason: str = ""


class Returned(Content, msgspec.Struct, frozen=True):
    """The JSON of what a call returned, or the name of the exception that it raised."""

    value: str = ""
    raised: str = ""


class Ran(Content, msgspec.Struct, frozen=True, tag="ran"):
    """What the code printed, what its calls returned, and the exception that ended it."""

    printed: str
    returned: tuple[Returned, ...] = ()
    raised: str = ""


class NotConfined(msgspec.Struct, frozen=True, tag="not_confined"):
    """The system does not filter system calls, so the code was not run."""


Answered = Matched | Ran | NotConfined
TASKS = msgspec.msgpack.Decoder(PatternTask | SchemaTask | CodeTask)
ANSWERS = msgspec.msgpack.Decoder(Answered)
