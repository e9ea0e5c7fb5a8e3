"""What goes to the child of check_child.py. What comes back is MATCH or NO_MATCH."""

from typing import Any

import msgspec

from cadenza.core.content import Content

MATCH, NO_MATCH = b"\x01", b"\x00"


class PatternTask(Content, msgspec.Struct, frozen=True, tag="pattern"):
    """Whether a pattern matches the text, which is the body."""

    pattern: str
    flags: int
    is_full: bool


class SchemaTask(Content, msgspec.Struct, frozen=True, tag="schema"):
    """Whether a schema accepts the JSON of the body."""

    schema: Any


TASKS = msgspec.msgpack.Decoder(PatternTask | SchemaTask)
