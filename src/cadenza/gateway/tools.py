"""The tool path's part of validation: tool definitions, the choice among them, and the calls of the history.

`tools` and `tool_choice` go upstream byte for byte; here they are only looked at. What OpenAI refuses is refused, with
a sentence that says what to mend; a schema's inside is the upstream's to judge.
"""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from cadenza.core.errors import InvalidRequest
from cadenza.core.tool_calls import unwrap_id

TOOLS_MAX = 128
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
TYPES = ("function", "custom")
CHOICES = ("auto", "none", "required")
RAW_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
RAW_CALLS = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])


class FunctionFields(msgspec.Struct):
    """What is looked at of a function definition."""

    name: str | None = None
    parameters: dict[str, Any] | None = None


class NameFields(msgspec.Struct):
    """A name, and whatever else."""

    name: str | None = None


class ToolFields(msgspec.Struct):
    """What is looked at of a tool."""

    type: str | None = None
    function: FunctionFields | None = None
    custom: NameFields | None = None


class CalledFields(msgspec.Struct):
    """What is looked at of a call in the history. Its arguments need not be JSON."""

    name: str
    arguments: str = ""


class CallFields(msgspec.Struct):
    """A call in the history."""

    id: str
    type: str = "function"
    function: CalledFields | None = None


def check_tools(tools: Sequence[ToolFields], choice: object) -> None:
    if len(tools) > TOOLS_MAX:
        raise InvalidRequest(f"tools: {len(tools)} were sent; at most {TOOLS_MAX} are taken.")
    names: set[str] = set()
    for index, tool in enumerate(tools):
        name = _check_tool(f"tools[{index}]", tool)
        if name in names:
            raise InvalidRequest(f"tools[{index}].function.name: '{name}' is defined twice.")
        names.add(name)
    _check_choice(choice, names)


def _check_tool(path: str, tool: ToolFields) -> str:
    if tool.type not in TYPES:
        raise InvalidRequest(f"{path}.type: must be 'function'.")
    definition = tool.function if tool.type == "function" else tool.custom
    name = definition.name if definition else None
    if name is None or not NAME.fullmatch(name):
        raise InvalidRequest(f"{path}.{tool.type}.name: must be 1 to 64 letters, digits, underscores or dashes.")
    return name


def _check_choice(choice: object, names: set[str]) -> None:
    if choice is None or choice in CHOICES:
        return
    if not isinstance(choice, dict):
        raise InvalidRequest(f"tool_choice: must be one of {', '.join(CHOICES)}, or name a function.")
    function = choice.get("function")
    if choice.get("type") == "function":
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str) or name not in names:
            raise InvalidRequest("tool_choice: names a function that tools does not define.")


class History:
    """Follows the calls of a conversation: each must be answered, and each answer must answer one."""

    def __init__(self) -> None:
        self._open: dict[str, str] = {}  # id -> the path of its call

    def follow(self, path: str, role: str, calls: Sequence[CallFields], answers: str | None) -> None:
        if role == "tool":
            if answers not in self._open:
                raise InvalidRequest(f"{path}.tool_call_id: '{answers}' answers no call that stands before it.")
            del self._open[answers]
            return
        self.end()
        self._open = {call.id: f"{path}.tool_calls[{index}]" for index, call in enumerate(calls)}

    def end(self) -> None:
        for call_id, path in self._open.items():
            raise InvalidRequest(f"{path}: the call '{call_id}' has no tool message that answers it.")


def with_upstream_ids(as_sent: msgspec.Raw) -> msgspec.Raw:
    """A message with the ids that the upstream gave its calls in place of ours; all else byte for byte."""
    fields = RAW_FIELDS.decode(as_sent)
    if _is_given(fields, "tool_call_id"):
        fields["tool_call_id"] = _unwrapped(fields["tool_call_id"])
    if _is_given(fields, "tool_calls"):
        calls = RAW_CALLS.decode(fields["tool_calls"])
        for call in calls:
            call["id"] = _unwrapped(call["id"])
        fields["tool_calls"] = msgspec.Raw(msgspec.json.encode(calls))
    return msgspec.Raw(msgspec.json.encode(fields))


def _is_given(fields: dict[str, msgspec.Raw], name: str) -> bool:
    return name in fields and bytes(fields[name]) != b"null"


def _unwrapped(raw_id: msgspec.Raw) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(unwrap_id(msgspec.json.decode(raw_id, type=str))))
