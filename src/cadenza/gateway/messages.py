"""Messages that are more than a role and a text: their checks, and what is changed in them for upstreams.

They have parts, tool calls or results of calls. Each call must have an answer.
"""

from collections.abc import Sequence
from itertools import count

import msgspec

from cadenza.core.content import Content
from cadenza.core.errors import InvalidRequest
from cadenza.core.message_json import RAW_FIELDS
from cadenza.gateway.large.weight import Steps
from cadenza.gateway.message_parts import MessagePart, check_part
from cadenza.gateway.tools import NOTHING, CallFields, ToolFields, restore_upstream_ids

PARTS_MAX = 16_384  # of all messages together
CALLS_MAX = 4096  # of all messages together
PART_STEPS, MEDIA_STEPS, CALL_STEPS = 2, 40, 2  # the size of an image is read
MEDIA_STEP_BYTES = 512
SHOWN_CHARS_MAX = 80  # of an id that an error quotes
ROLES = ("system", "developer", "user", "assistant", "tool")
PLAIN_ROLES = frozenset({"system", "developer", "user", "assistant"})
FALSY = (b"null", b"{}", b"[]", b'""', b"false", b"0")
CUSTOM_TOOLS = frozenset({"custom_tools"})


class SentMessage(Content, msgspec.Struct):
    """The fields of a message that are looked at."""

    role: str
    content: str | list[MessagePart] | None = None
    tool_calls: list[CallFields] | None = None
    tool_call_id: str | None = None
    function_call: msgspec.Raw = NOTHING
    refusal: str | None = None
    reasoning_content: msgspec.Raw = NOTHING
    reasoning: msgspec.Raw = NOTHING
    reasoning_details: msgspec.Raw = NOTHING
    audio: msgspec.Raw = NOTHING
    annotations: msgspec.Raw = NOTHING  # of our own replies


def check_messages(messages: list[SentMessage], steps: Steps) -> list[str]:
    """Check the messages and return their texts. Each tool call must have an answer.

    TooManySteps if their parts and calls take more steps than are left.
    """
    steps.spend(_count_steps(messages))
    texts = list(map(_check_message, count(), messages))
    _check_answers(messages)
    return texts


def _count_steps(messages: list[SentMessage]) -> int:
    """About how long it takes to check the messages; 400 if they have too many parts or calls."""
    parts = media = media_bytes = calls = 0
    for message in messages:
        if type(message.content) is list:
            parts += len(message.content)
            sizes = [part.data_bytes for part in message.content if part.text is None]
            media += len(sizes)
            media_bytes += sum(sizes)
        if message.tool_calls:
            calls += len(message.tool_calls)
    if parts > PARTS_MAX:
        raise InvalidRequest(f"messages: they have {parts} parts together; at most {PARTS_MAX} are allowed.")
    if calls > CALLS_MAX:
        raise InvalidRequest(f"messages: they have {calls} tool calls together; at most {CALLS_MAX} are allowed.")
    return PART_STEPS * parts + MEDIA_STEPS * media + media_bytes // MEDIA_STEP_BYTES + CALL_STEPS * calls


def _check_answers(messages: list[SentMessage]) -> None:
    """Each call must have an answer, and each answer a call."""
    unanswered: dict[str | None, tuple[int, int]] = {}  # call id to the message and the number of the call
    for index, message in enumerate(messages):
        if message.role != "tool":
            if unanswered:
                _refuse_unanswered(unanswered)
            if message.tool_calls:
                unanswered = {call.id: (index, number) for number, call in enumerate(message.tool_calls)}
        elif unanswered.pop(message.tool_call_id, None) is None:
            shown = str(message.tool_call_id)[:SHOWN_CHARS_MAX]
            raise InvalidRequest(
                f"messages[{index}].tool_call_id: '{shown}' answers no call of the preceding assistant message."
            )
    if unanswered:
        _refuse_unanswered(unanswered)


def _refuse_unanswered(unanswered: dict[str | None, tuple[int, int]]) -> None:
    call_id, (index, number) = next(iter(unanswered.items()))
    path, shown = f"messages[{index}].tool_calls[{number}]", str(call_id)[:SHOWN_CHARS_MAX]
    raise InvalidRequest(f"{path}: the call '{shown}' has no tool message that answers it.")


def _check_message(index: int, message: SentMessage) -> str:
    """Check a message and return its text."""
    role, content = message.role, message.content
    is_known = role in PLAIN_ROLES or (role == "tool" and message.tool_call_id)
    if is_known and message.function_call is NOTHING and type(content) is str:
        return content + _text_of_calls(message) if message.tool_calls else content
    if role == "assistant" and content is None and message.tool_calls and message.function_call is NOTHING:
        return _text_of_calls(message) + (message.refusal or "")
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
    role, content, calls = message.role, message.content, message.tool_calls
    if role == "tool" and type(content) is str and not calls:
        return restore_upstream_ids(raw, (message.tool_call_id,)) if message.tool_call_id else raw
    if message.tool_call_id:
        raw = restore_upstream_ids(raw, (message.tool_call_id,))
    if calls:
        raw = restore_upstream_ids(raw, [call.id for call in calls])
    parts = content if type(content) is list else ()
    has_refusal = bool(parts) and any(part.type == "refusal" for part in parts)
    has_annotations = role == "assistant" and message.annotations != NOTHING
    has_no_calls = calls == [] and role != "tool"
    if not (has_refusal or has_annotations or has_no_calls or role == "developer"):
        return raw
    fields = RAW_FIELDS.decode(raw)
    if has_refusal:
        text = "".join([part.text or part.refusal or "" for part in parts])
        fields["content"] = msgspec.Raw(msgspec.json.encode(text))
    if has_annotations:
        del fields["annotations"]
    if role == "developer":
        fields["role"] = msgspec.Raw(b'"system"')
    if has_no_calls:
        del fields["tool_calls"]
        if content is None:
            fields["content"] = msgspec.Raw(b'""')
    return msgspec.Raw(msgspec.json.encode(fields))
