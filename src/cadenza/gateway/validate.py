"""Parses the body of a chat request into a ChatRequest, or refuses it with a 400 that says what to correct.

Messages and sampling fields stay raw JSON and go upstream unchanged, except that the role `developer` becomes `system`.
Everything that OpenAI accepts is accepted, except its deprecated `functions`. An unknown top-level field is dropped
and named in a header, unless a route passes it on (extra_fields.py).
"""

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from cadenza.core.chat import NO_FIELDS, SAMPLING, ChatRequest, Fields, UsageOptions
from cadenza.core.content import Content
from cadenza.core.errors import InvalidRequest
from cadenza.core.mistakes import describe_mistake
from cadenza.core.records import OUTPUT_TOKENS_MAX
from cadenza.gateway.extra_fields import read_extra_fields
from cadenza.gateway.large.weight import LIGHT_BYTES, UNBOUNDED, Steps, check_surrogates
from cadenza.gateway.message_parts import NOTHING_ATTACHED, find_attached
from cadenza.gateway.messages import (
    CUSTOM_TOOLS,
    SentMessage,
    check_messages,
    has_custom_tools,
    is_truthy,
    to_upstream,
)
from cadenza.gateway.tools import NOTHING, ToolFields, check_choice, check_tools

T = TypeVar("T")

MESSAGES_MAX = 4096
FIELD_BYTES_MAX = 64 * 1024  # of a sampling field, except:
SCHEMA_BYTES_MAX = 1024 * 1024  # a schema in `response_format`, or `logit_bias`
UNCHANGED_ROLES = frozenset({"system", "user", "assistant"})
SYSTEM_ROLES = frozenset({"system", "developer"})
LARGE_SAMPLING = ("response_format", "logit_bias")
LIMITS = ("max_tokens", "max_completion_tokens")
TOOL_FIELDS = ("tools", "tool_choice", "parallel_tool_calls")


class ChatBody(Content, msgspec.Struct, forbid_unknown_fields=True):
    """The fields that are used. What has a structure of its own stays raw."""

    model: str | None = None
    messages: list[msgspec.Raw] | None = None
    stream: bool | None = None
    stream_options: msgspec.Raw = NOTHING  # ignored: every stream ends with its usage
    max_tokens: int | float | None = None
    max_completion_tokens: int | float | None = None
    n: int | float | None = None
    logprobs: bool | None = None
    top_logprobs: int | float | None = None
    modalities: list[str] | None = None
    tools: msgspec.Raw = NOTHING
    tool_choice: msgspec.Raw = NOTHING
    parallel_tool_calls: msgspec.Raw = NOTHING
    temperature: msgspec.Raw = NOTHING
    top_p: msgspec.Raw = NOTHING
    stop: msgspec.Raw = NOTHING
    seed: msgspec.Raw = NOTHING
    presence_penalty: msgspec.Raw = NOTHING
    frequency_penalty: msgspec.Raw = NOTHING
    response_format: msgspec.Raw = NOTHING
    reasoning_effort: msgspec.Raw = NOTHING
    logit_bias: msgspec.Raw = NOTHING
    usage: UsageOptions | None = None


class OpenChatBody(ChatBody, forbid_unknown_fields=False):
    """The same, but unknown fields are skipped."""


_BODY, _OPEN_BODY = msgspec.json.Decoder(ChatBody), msgspec.json.Decoder(OpenChatBody)
_KNOWN = frozenset(ChatBody.__struct_fields__)
_MESSAGE, _MESSAGES = msgspec.json.Decoder(SentMessage), msgspec.json.Decoder(list[SentMessage])
_TOOLS = msgspec.json.Decoder(list[ToolFields] | None)
_NUMBER = msgspec.json.Decoder(float | None)


def parse_chat(body: bytes | bytearray, steps: Steps = UNBOUNDED) -> ChatRequest:
    """TooManySteps if it takes more than these."""
    decoded, extra = decode_body(body)
    return check_body(decoded, extra, steps)


def check_body(body: ChatBody, extra: Fields = NO_FIELDS, steps: Steps = UNBOUNDED) -> ChatRequest:
    raw_messages = body.messages or []
    check_message_count(len(raw_messages))
    if steps is not UNBOUNDED:
        steps.spend(len(raw_messages))
    messages = _read_messages(raw_messages)
    tools = decode_field(_TOOLS, body.tools, "tools") if body.tools is not NOTHING else None
    _refuse_unsupported(body, extra, tools)
    if not messages:
        raise InvalidRequest(_messages_hint(extra))
    if not tools and (body.tool_choice is not NOTHING or body.parallel_tool_calls is not NOTHING):
        extra = {**extra, **_tool_fields(body, TOOL_FIELDS[1:])}
    texts, forwarded, attached = _plain_texts(messages), raw_messages, NOTHING_ATTACHED
    if texts is None:
        texts = check_messages(messages, steps)
        forwarded = list(map(to_upstream, messages, raw_messages))
        contents = [(index, one.content) for index, one in enumerate(messages) if isinstance(one.content, list)]
        attached = find_attached(forwarded, contents, reads_files=not tools)
    leading = _count_leading_system(messages) if messages[0].role in SYSTEM_ROLES else 0
    system = "\n\n".join(filter(None, texts[:leading])) if leading else ""
    is_plain = tools is None and forwarded is raw_messages
    has_custom = not is_plain and has_custom_tools(messages, tools or ())
    return ChatRequest(
        model=body.model,
        messages=forwarded,
        texts=texts,
        stream=body.stream or False,
        max_tokens=_max_tokens(body, has_tools=bool(tools)),
        sampling=_sampling(body),
        tools=_tool_fields(body) if tools else {},
        leading_system=leading,
        system=msgspec.json.encode(system)[1:-1] if system else b"",
        needs=attached.needs | CUSTOM_TOOLS if has_custom else attached.needs,
        files=attached.files,
        media=attached.media,
        extra=extra,
        excluded=attached.excluded,
        wants_cost=body.usage is not None and bool(body.usage.include),
    )


def decode_body(body: bytes | bytearray) -> tuple[ChatBody, Fields]:
    """The known fields, and the others, which most requests do not have.

    Raw JSON is not decoded later, so invalid UTF-8 and lone surrogates in it must be found here.
    """
    check_utf8(body)
    extra = NO_FIELDS
    try:
        decoded = _BODY.decode(body)
    except (msgspec.DecodeError, RecursionError):
        decoded = decode_field(_OPEN_BODY, body)
        extra = read_extra_fields(body, _KNOWN)
    check_surrogates(body)
    return decoded, extra


def check_utf8(body: bytes | bytearray) -> None:
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError:
            raise InvalidRequest("The body is not valid UTF-8.") from None


def decode_field(decoder: msgspec.json.Decoder[T], raw: bytes | bytearray | msgspec.Raw, field: str = "") -> T:
    try:
        return decoder.decode(raw)
    except RecursionError:
        raise InvalidRequest("The body is nested too deeply.") from None
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{describe_mistake(str(error), field)}.") from None
    except msgspec.DecodeError as error:
        if len(raw) <= LIGHT_BYTES:
            check_surrogates(raw)
        reason = str(error).removeprefix("JSON is malformed: ") if raw else "it is empty"
        raise InvalidRequest(f"The body is not valid JSON: {reason}.") from None


def _sampling(body: ChatBody) -> dict[str, msgspec.Raw]:
    fields = {name: raw for name in SAMPLING if (raw := getattr(body, name)) is not NOTHING}
    for raw in fields.values():
        if raw == NOTHING or len(raw) > FIELD_BYTES_MAX:
            return _checked(fields)
    return fields


def _checked(fields: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    """The fields that are not null; 400 if one is too large."""
    for name, raw in fields.items():
        bytes_max = SCHEMA_BYTES_MAX if name in LARGE_SAMPLING else FIELD_BYTES_MAX
        if len(raw) > bytes_max:
            raise InvalidRequest(f"{name}: is larger than {bytes_max // 1024} KiB, which is the maximum.")
    return {name: raw for name, raw in fields.items() if raw != NOTHING}


def _tool_fields(body: ChatBody, names: Iterable[str] = TOOL_FIELDS) -> dict[str, msgspec.Raw]:
    return {name: raw for name in names if (raw := getattr(body, name)) != NOTHING}


def _refuse_unsupported(body: ChatBody, extra: Fields, tools: list[ToolFields] | None) -> None:
    if body.n is not None and body.n != 1:
        raise InvalidRequest("n: not implemented for values other than 1. Send one request per choice.")
    if body.logprobs or body.top_logprobs:
        raise InvalidRequest("logprobs and top_logprobs: not implemented here. Leave them out.")
    if body.modalities and body.modalities != ["text"]:
        raise InvalidRequest('modalities: only text is implemented here. Send ["text"], or leave it out.')
    if extra and (is_truthy(extra.get("functions")) or is_truthy(extra.get("function_call"))):
        raise InvalidRequest("functions and function_call: not supported. Use `tools` and `tool_choice` instead.")
    if body.temperature is not NOTHING:
        temperature = decode_field(_NUMBER, body.temperature, "temperature")
        if temperature is not None and not 0 <= temperature <= 2:
            raise InvalidRequest("temperature: must be between 0 and 2.")
    if tools or body.tool_choice is not NOTHING:
        check_choice(body.tool_choice, check_tools(tools or ()))


def _messages_hint(extra: Fields) -> str:
    if "input" in extra:
        return "messages: missing. This body has the shape of the Responses API; send `messages` to this path instead."
    return "messages: must be an array of at least one message."


def check_message_count(count: int) -> None:
    if count > MESSAGES_MAX:
        raise InvalidRequest(f"messages: {count} were sent; at most {MESSAGES_MAX} are allowed.")


def _read_messages(raw_messages: list[msgspec.Raw]) -> list[SentMessage]:
    try:
        return list(map(_MESSAGE.decode, raw_messages))
    except (msgspec.DecodeError, RecursionError):  # once more, for an error that says which one
        return decode_field(_MESSAGES, b"[%b]" % b",".join(raw_messages), "messages")


def _plain_texts(messages: list[SentMessage]) -> list[str] | None:
    """The texts, if each message is a role and a text: the usual case, with nothing more to check or to change."""
    texts: list[str] = []
    nothing, roles = NOTHING, UNCHANGED_ROLES
    for message in messages:
        content = message.content
        if type(content) is not str or message.role not in roles or message.tool_calls is not None:
            return None
        if message.function_call is not nothing or message.annotations is not nothing:
            return None
        texts.append(content)
    return texts


def _count_leading_system(messages: list[SentMessage]) -> int:
    for number, message in enumerate(messages):
        if message.role not in SYSTEM_ROLES:
            return number
    return len(messages)


def _max_tokens(body: ChatBody, *, has_tools: bool) -> int | None:
    limit, other = body.max_tokens, body.max_completion_tokens
    if limit is None or (other is not None and other < limit):
        limit, other = other, limit
    if limit is None:
        return None
    if limit < 1 or (type(limit) is float and limit % 1) or (type(other) is float and other % 1):  # 17.0 is an integer
        limit = limit if limit < 1 or limit % 1 else other
        raise InvalidRequest(f"{LIMITS[limit == body.max_completion_tokens]}: must be a positive integer.")
    if has_tools:  # fitted to the route's window later
        return int(min(limit, OUTPUT_TOKENS_MAX))
    if limit > OUTPUT_TOKENS_MAX:
        name = LIMITS[limit == body.max_completion_tokens]
        raise InvalidRequest(f"{name}: at most {OUTPUT_TOKENS_MAX:,} tokens are allowed.")
    return limit if type(limit) is int else int(limit)
