"""The base of every record that may carry content: messages, answers, tool calls, files, notes, searches and pages.

Content is never written. So that no error message, log line or f-string can quote it by mistake, the text of such a
record shows numbers and lengths only. Its fields are ordinary strings, bytes and JSON: nothing is wrapped.
tests/unit/test_content.py walks all records and holds each to this, or to a table of metadata.
"""

from collections.abc import Sized
from typing import Any, ClassVar


class Content:
    """The first base of a Struct that may carry content: its repr shows neither text nor bytes."""

    __slots__ = ()
    __struct_fields__: ClassVar[tuple[str, ...]]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={shown}' for name, shown in self.__rich_repr__())})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [(name, describe(getattr(self, name))) for name in self.__struct_fields__]


def describe(value: object) -> str:
    """A number as it is, and of anything else the type and the length, if it has one."""
    if value is None or isinstance(value, int | float):
        return repr(value)
    length = f" of {len(value)}" if isinstance(value, Sized) else ""
    return f"<{type(value).__name__}{length}>"
