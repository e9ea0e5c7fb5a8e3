"""Tool calls: one form for the calls of every upstream. Pure.

For the client a call has a sequential index, an id of ours, and its name on its first part only. Upstreams differ: all
calls have index 0, ids are missing, repeated or on every part, names come in pieces, calls come whole. All of that is
normalized here.

A call is of a function, whose arguments are JSON, or of a custom tool, whose input is free text.
"""

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from cadenza.core.call_ids import wrap_id

CallType = Literal["function", "custom"]


class ToolCallPart(msgspec.Struct, frozen=True):
    """A part of a call from an upstream, in one form for all dialects. `index` is the upstream's own, if given.

    `arguments` is the input of a custom tool. `extra_content` is data that the upstream wants back with the call:
    Gemini puts a signature there, and refuses the next turn without it.
    """

    index: int | None = None
    id: str = ""
    name: str = ""
    arguments: str = ""
    type: CallType = "function"
    extra_content: dict[str, Any] | None = None


class ToolCallDelta(msgspec.Struct, frozen=True):
    """A part of a call for the client. Only the first part of each call has `id` and `name`."""

    index: int
    arguments: str
    id: str = ""
    name: str = ""
    type: CallType = "function"
    extra_content: dict[str, Any] | None = None


class ToolCallNormalizer:
    """Assigns the parts of a reply to calls, which are numbered in the order in which they first appear."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._begun = 0  # how many of them have begun for the client: calls begin in the order of their numbers
        self._by_index: dict[int, _Call] = {}
        self._by_id: dict[str, _Call] = {}

    def take(self, parts: Iterable[ToolCallPart]) -> list[ToolCallDelta]:
        """The deltas that can be sent now. A call begins with its first arguments: by then its name is complete."""
        changed: dict[int, _Call] = {}
        for part in parts:
            call = self._find_or_begin(part)
            call.take(part)
            changed[call.index] = call
        deltas = [call.next_delta() for call in changed.values() if call.id and (call.waiting or call.extra_content)]
        return deltas + self._begin_calls(is_over=False)

    def finish(self) -> list[ToolCallDelta]:
        """The deltas that are left: calls without arguments, and calls that waited behind them."""
        return self._begin_calls(is_over=True)

    def _begin_calls(self, *, is_over: bool) -> list[ToolCallDelta]:
        deltas = []
        while self._begun < len(self._calls):
            call = self._calls[self._begun]
            if not call.waiting and not is_over:
                break
            call.id = wrap_id(call.upstream_id if self._by_id.get(call.upstream_id) is call else "")
            deltas.append(call.first_delta())
            self._begun += 1
        return deltas

    def _find_or_begin(self, part: ToolCallPart) -> "_Call":
        call = self._find(part)
        if call is None:
            call = _Call(len(self._calls), part.id, part.type)
            self._calls.append(call)
        if part.id:
            self._by_id.setdefault(part.id, call)
        if part.index is not None:
            self._by_index[part.index] = call
        return call

    def _find(self, part: ToolCallPart) -> "_Call | None":
        """The call that a part belongs to; None if it begins a new one."""
        last = self._calls[-1] if self._calls else None
        current = last if part.index is None else self._by_index.get(part.index)
        if current is None:
            return None
        if part.id and part.id != current.upstream_id:
            if current.upstream_id or current.is_whole:
                return self._by_id.get(part.id)  # another call with the same index
            current.upstream_id = part.id
        if part.name and current.is_whole and (part.arguments.strip() or part.name != current.name):
            return None  # the last call is complete: this is the next one with the same index
        return current


class _Call:
    """One call whose parts are arriving."""

    def __init__(self, index: int, upstream_id: str, type_: CallType) -> None:
        self.index = index
        self.upstream_id = upstream_id
        self.type = type_
        self.id = ""  # ours, once the call has begun for the client
        self.name = ""
        self.waiting = ""  # arguments that were not sent yet
        self.extra_content: dict[str, Any] | None = None  # likewise
        self.is_whole = False
        self._open = 0
        self._in_string = False
        self._is_escaped = False

    def take(self, part: ToolCallPart) -> None:
        if part.name and not self.id and part.name != self.name:
            self.name += part.name
        self.waiting += part.arguments
        self.extra_content = part.extra_content or self.extra_content
        if self.type == "function":
            for character in part.arguments:
                self._follow(character)

    def first_delta(self) -> ToolCallDelta:
        delta = self.next_delta()
        arguments = "{}" if self.type == "function" and not delta.arguments else delta.arguments
        return msgspec.structs.replace(delta, arguments=arguments, id=self.id, name=self.name)

    def next_delta(self) -> ToolCallDelta:
        arguments, self.waiting = self.waiting, ""
        extra_content, self.extra_content = self.extra_content, None
        return ToolCallDelta(self.index, arguments, type=self.type, extra_content=extra_content)

    def _follow(self, character: str) -> None:
        """Track whether the arguments so far are a complete JSON value."""
        if self._is_escaped:
            self._is_escaped = False
        elif self._in_string:
            self._is_escaped = character == "\\"
            self._in_string = character != '"'
        elif character == '"':
            self._in_string = True
        elif character in "{[":
            self._open += 1
        elif character in "}]":
            self._open -= 1
            self.is_whole = self._open == 0
