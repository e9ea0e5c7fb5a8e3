"""Messages that are more than a role and a text: their checks, and what is changed in them for upstreams.

They have parts, tool calls or results of calls. Each call must have an answer.
"""

from collections.abc import Sequence

import msgspec

from cadenza.core.content import Content
from cadenza.core.errors import InvalidRequest
from cadenza.core.message_json import RAW_FIELDS
from cadenza.gateway.parts import Part, check_part
from cadenza.gateway.tools import NOTHING, CallFields, ToolFields, restore_upstream_ids

PARTS_MAX = 16_384  # of all messages together
CALLS_MAX = 4096  # of all messages together
SHOWN_CHARS_MAX = 80  # of an id that an error quotes
ROLES = ("system", "developer", "user", "assistant", "tool")
PLAIN_ROLES = frozenset({"system", "developer", "user", "assistant"})
FALSY = (b"null", b"{}", b"[]", b'""', b"false", b"0")
CUSTOM_TOOLS = frozenset({"custom_tools"})


class SentMessage(Content, msgspec.Struct):
    """The fields of a message that are looked at."""

    role: str
    content: str | list[Part] | None = None
    tool_calls: list[CallFields] | None = None
    tool_call_id: str | None = None
    function_call: msgspec.Raw = NOTHING
    refusal: str | None = None
    reasoning_content: msgspec.Raw = NOTHING
    reasoning: msgspec.Raw = NOTHING
    reasoning_details: msgspec.Raw = NOTHING
    audio: msgspec.Raw = NOTHING
    annotations: msgspec.Raw = NOTHING  # of our own replies


def check_messages(messages: list[SentMessage]) -> list[str]:
    """Check the messages and return their texts. Each tool call must have an answer."""
    _check_numbers(messages)
    texts = [_check_message(index, message) for index, message in enumerate(messages)]
    if any(message.tool_calls or message.role == "tool" for message in messages):
        _check_answers(messages)
    return texts


def _check_numbers(messages: list[SentMessage]) -> None:
    parts = calls = 0
    for message in messages:
        if type(message.content) is list:
            parts += len(message.content)
        if message.tool_calls:
            calls += len(message.tool_calls)
    if parts > PARTS_MAX:
        raise InvalidRequest(f"messages: they have {parts} parts together; at most {PARTS_MAX} are allowed.")
    if calls > CALLS_MAX:
        raise InvalidRequest(f"messages: they have {calls} tool calls together; at most {CALLS_MAX} are allowed.")


def _check_answers(messages: list[SentMessage]) -> None:
    """Each call must have an answer, and each answer a call."""
    unanswered: dict[str | None, str] = {}  # call id to the path of the call
    for index, message in enumerate(messages):
        if message.role != "tool":
            _check_none_left(unanswered)
            calls = enumerate(message.tool_calls or ())
            unanswered = {call.id: f"messages[{index}].tool_calls[{number}]" for number, call in calls}
        elif unanswered.pop(message.tool_call_id, None) is None:
            shown = str(message.tool_call_id)[:SHOWN_CHARS_MAX]
            raise InvalidRequest(
                f"messages[{index}].tool_call_id: '{shown}' answers no call of the preceding assistant message."
            )
    _check_none_left(unanswered)


def _check_none_left(unanswered: dict[str | None, str]) -> None:
    for call_id, path in unanswered.items():
        shown = str(call_id)[:SHOWN_CHARS_MAX]
        raise InvalidRequest(f"{path}: the call '{shown}' has no tool message that answers it.")


def _check_message(index: int, message: SentMessage) -> str:
    """Check a message and return its text."""
    is_plain = message.role in PLAIN_ROLES and isinstance(message.content, str)
    if is_plain and not message.tool_calls and message.function_call is NOTHING:
        return str(message.content)
    path = f"messages[{index}]"
    if message.role == "function" or is_truthy(message.function_call):
        raise InvalidRequest(
            f"{path}: functions are not supported. Use `tools`: send calls as `tool_calls` of an assistant message, "
            "and each result as a message of the role `tool`."
        )
    if message.role not in ROLES:
        raise InvalidRequest(f"{path}.role: must be one of {', '.join(ROLES)}.")
    if message.role == "tool" and not message.tool_call_id:
        raise InvalidRequest(f"{path}.tool_call_id: a tool message must name the call that it answers.")
    if message.content is None:
        if message.role == "assistant" and (message.tool_calls is not None or _has_other_content(message)):
            return _text_of_calls(message) + (message.refusal or "")
        raise InvalidRequest(f"{path}.content: must be a string or an array of parts.")
    if isinstance(message.content, str):
        return message.content + _text_of_calls(message)
    return _text_of_calls(message) + "".join(
        check_part(f"{path}.content[{index}]", part, message.role) for index, part in enumerate(message.content)
    )


def _has_other_content(message: SentMessage) -> bool:
    """Whether the message has what a reply may have in place of a text."""
    others = (message.reasoning_content, message.reasoning, message.reasoning_details, message.audio)
    return bool(message.refusal) or any(map(is_truthy, others))


def _text_of_calls(message: SentMessage) -> str:
    return "".join([call.text for call in message.tool_calls or ()])


def is_truthy(raw: msgspec.Raw | None) -> bool:
    return raw is not None and raw is not NOTHING and bytes(memoryview(raw)[:6]) not in FALSY


def has_custom_tools(messages: list[SentMessage], tools: Sequence[ToolFields]) -> bool:
    calls = (call for message in messages for call in message.tool_calls or ())
    return any(tool.type == "custom" for tool in tools) or any(call.type == "custom" for call in calls)


def to_upstream(message: SentMessage, raw: msgspec.Raw) -> msgspec.Raw:
    """The message without what upstreams do not accept.

    That is the role `developer`, refusals as parts of the content, empty `tool_calls`, our call ids and annotations.
    """
    parts = message.content if isinstance(message.content, list) else []
    has_refusal = any(part.type == "refusal" for part in parts)
    has_annotations = message.role == "assistant" and message.annotations != NOTHING
    has_ids = bool(message.tool_calls) or message.role == "tool"
    if not (has_refusal or has_annotations or has_ids or message.role == "developer" or message.tool_calls == []):
        return raw
    fields = RAW_FIELDS.decode(raw)
    if has_refusal:
        text = "".join([part.text or part.refusal or "" for part in parts])
        fields["content"] = msgspec.Raw(msgspec.json.encode(text))
    if has_annotations:
        del fields["annotations"]
    if has_ids:
        restore_upstream_ids(fields)
    elif message.role == "developer":
        fields["role"] = msgspec.Raw(b'"system"')
    if message.tool_calls == [] and message.role != "tool":
        del fields["tool_calls"]
        if message.content is None:
            fields["content"] = msgspec.Raw(b'""')
    return msgspec.Raw(msgspec.json.encode(fields))
