"""Validation on the tool path: tool definitions, `tool_choice`, and the tool calls in the message history.

`tools` and `tool_choice` go upstream byte for byte; this module only checks them. It refuses what OpenAI refuses, with
a message that says what to correct. It does not check the content of a JSON schema; the upstream does.
"""

import re
from collections.abc import Sequence
from functools import lru_cache

import msgspec

from cadenza.core.content import Content
from cadenza.core.errors import InvalidRequest
from cadenza.core.message_json import RAW_FIELDS
from cadenza.core.tool_calls import unwrap_id

TOOLS_MAX = 128
NOTHING = msgspec.Raw(b"null")  # a raw field that was not sent
CALLS_REPLACED_MAX = 16  # in one message: it is copied for each
KEPT_IDS_MAX, KEPT_CHARS_MAX = 16 * 1024, 64  # 7 MB
BEFORE_ID = (b'"tool_call_id":', b'"id":', b'"tool_call_id": ', b'"id": ')
CHOICE_BYTES_MAX = 64 * 1024
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
TYPES = ("function", "custom")
CHOICES = ("auto", "none", "required")
CHOICE_TYPES = (*TYPES, "allowed_tools")
ALLOWED_MODES = ("auto", "required")
BAD_CHOICE = (
    "tool_choice: must be one of the strings auto, none and required, or an object of the type function, custom or "
    "allowed_tools."
)
RAW_CALLS = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])


class NamedFields(Content, msgspec.Struct):
    """The fields of a function or a custom tool that are checked. Only the definition of a function has parameters."""

    name: str | None = None
    parameters: msgspec.Raw = NOTHING


class ToolFields(Content, msgspec.Struct):
    """The fields of a tool, or of a `tool_choice` that names one, that are checked."""

    type: str | None = None
    function: NamedFields | None = None
    custom: NamedFields | None = None


class AllowedTools(Content, msgspec.Struct):
    """The tools that a `tool_choice` leaves to the model."""

    mode: str | None = None
    tools: list[ToolFields] = []


class ChoiceFields(ToolFields):
    """The fields of a `tool_choice` that are checked: it names one tool, or several."""

    allowed_tools: AllowedTools | None = None


class CalledFunctionFields(Content, msgspec.Struct):
    """The function of a call in the history. Its arguments need not be JSON."""

    name: str
    arguments: str = ""


class CalledCustomFields(Content, msgspec.Struct):
    """The custom tool of a call in the history."""

    name: str
    input: str = ""


class CallFields(Content, msgspec.Struct):
    """A call in the history."""

    id: str
    type: str = "function"
    function: CalledFunctionFields | None = None
    custom: CalledCustomFields | None = None

    @property
    def text(self) -> str:
        """What the call adds to the prompt."""
        if self.function:
            return self.function.name + self.function.arguments
        return self.custom.name + self.custom.input if self.custom else ""


_CHOICE: msgspec.json.Decoder[ChoiceFields | str | None] = msgspec.json.Decoder(ChoiceFields | str | None)


def check_tools(tools: Sequence[ToolFields]) -> dict[str, str]:
    """The types of the tools, by their names."""
    if len(tools) > TOOLS_MAX:
        raise InvalidRequest(f"tools: {len(tools)} were sent; at most {TOOLS_MAX} are allowed.")
    types: dict[str, str] = {}
    for index, tool in enumerate(tools):
        name = _check_tool(f"tools[{index}]", tool)
        if name in types:
            raise InvalidRequest(f"tools[{index}].{tool.type}.name: '{name}' is defined twice.")
        types[name] = tool.type or ""
    return types


def _check_tool(path: str, tool: ToolFields) -> str:
    if tool.type not in TYPES:
        raise InvalidRequest(f"{path}.type: must be 'function' or 'custom'.")
    definition = tool.function if tool.type == "function" else tool.custom
    if tool.type == "function" and tool.function and memoryview(tool.function.parameters)[0] not in b"{n":
        raise InvalidRequest(f"{path}.function.parameters: must be an object.")
    name = definition.name if definition else None
    if name is None or not NAME.fullmatch(name):
        raise InvalidRequest(f"{path}.{tool.type}.name: must be 1 to 64 letters, digits, underscores or dashes.")
    return name


def check_choice(raw: msgspec.Raw, types: dict[str, str]) -> None:
    """Check a `tool_choice` against the tools: their types by their names, and empty if there are none."""
    if raw is NOTHING:
        return
    choice = _read_choice(raw)
    if not types and choice not in (None, "auto", "none"):
        raise InvalidRequest("tool_choice: asks for a call, but the request defines no tools.")
    if choice is None or isinstance(choice, str):
        return
    if choice.type in TYPES:
        _check_defined("tool_choice", choice, types)
        return
    allowed = choice.allowed_tools
    if allowed is None or allowed.mode not in ALLOWED_MODES or not allowed.tools:
        raise InvalidRequest("tool_choice.allowed_tools: needs a `mode`, auto or required, and `tools`, at least one.")
    for index, one in enumerate(allowed.tools):
        _check_defined(f"tool_choice.allowed_tools.tools[{index}]", one, types)


def _check_defined(path: str, named: ToolFields, types: dict[str, str]) -> None:
    definition = named.function if named.type == "function" else named.custom
    if definition is None or definition.name is None or types.get(definition.name) != named.type:
        raise InvalidRequest(f"{path}: must have the type and the name of a tool that `tools` defines.")


def _read_choice(raw: msgspec.Raw) -> ChoiceFields | str | None:
    """A choice of a known form."""
    if memoryview(raw).nbytes > CHOICE_BYTES_MAX:
        raise InvalidRequest(f"tool_choice: is larger than {CHOICE_BYTES_MAX // 1024} KiB, which is the maximum.")
    try:
        choice = _CHOICE.decode(raw)
    except msgspec.ValidationError:
        raise InvalidRequest(BAD_CHOICE) from None
    except RecursionError:
        raise InvalidRequest("The body is nested too deeply.") from None
    is_known = choice.type in CHOICE_TYPES if isinstance(choice, ChoiceFields) else choice in (None, *CHOICES)
    if not is_known:
        raise InvalidRequest(BAD_CHOICE)
    return choice


def restore_upstream_ids(raw: msgspec.Raw, call_ids: Sequence[str]) -> msgspec.Raw:
    """The message with the upstream's own ids in place of ours. It is not decoded if they are few and easy to find."""
    restored = None
    for call_id in call_ids:
        ours, inner = _kept_json_ids(call_id) if len(call_id) <= KEPT_CHARS_MAX else _json_ids(call_id)
        if inner:
            before, _, after = (restored or bytes(raw)).partition(ours)
            if not before.endswith(BEFORE_ID) or len(call_ids) > CALLS_REPLACED_MAX:
                return _restore_by_field(raw)
            restored = b"".join((before, inner, after))
    return raw if restored is None else msgspec.Raw(restored)


def _json_ids(call_id: str) -> tuple[bytes, bytes]:
    """An id and the upstream's own inside it as JSON; the second is empty if there is none."""
    inner_id = unwrap_id(call_id)
    return msgspec.json.encode(call_id), msgspec.json.encode(inner_id) if inner_id != call_id else b""


_kept_json_ids = lru_cache(KEPT_IDS_MAX)(_json_ids)  # each turn of an agent has the ids of all turns before, twice


def _restore_by_field(raw: msgspec.Raw) -> msgspec.Raw:
    fields = RAW_FIELDS.decode(raw)
    if fields.get("tool_call_id", NOTHING) != NOTHING:
        fields["tool_call_id"] = _unwrapped(fields["tool_call_id"])
    if fields.get("tool_calls", NOTHING) != NOTHING:
        calls = RAW_CALLS.decode(fields["tool_calls"])
        for call in calls:
            call["id"] = _unwrapped(call["id"])
        fields["tool_calls"] = msgspec.Raw(msgspec.json.encode(calls))
    return msgspec.Raw(msgspec.json.encode(fields))


def _unwrapped(raw_id: msgspec.Raw) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(unwrap_id(msgspec.json.decode(raw_id, type=str))))
