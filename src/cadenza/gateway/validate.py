"""Parses the body of a chat request into a ChatRequest, or refuses it with a 400 that says what to correct.

Messages and sampling fields stay raw JSON and go upstream unchanged, except that the role `developer` becomes `system`.
Everything that OpenAI accepts is accepted, but for its deprecated `functions`. An unknown top-level field is kept apart
(extra_fields.py): it is dropped and named, unless a route passes it on.
"""

import re
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from cadenza.core.chat import NO_FIELDS, SAMPLING, ChatRequest, Fields
from cadenza.core.errors import ContextOverflow, InvalidRequest
from cadenza.core.records import CONTEXT_TOKENS_MAX, OUTPUT_TOKENS_MAX
from cadenza.gateway.extra_fields import read_extra_fields
from cadenza.gateway.parts import NOTHING_ATTACHED, Attached, Part, check_part, find_attached
from cadenza.gateway.tools import NOTHING, CallFields, History, ToolFields, check_choice, check_tools, with_upstream_ids

T = TypeVar("T")

MESSAGES_MAX = 4096
PARTS_MAX = 16_384  # of all messages together
CALLS_MAX = 4096  # of all messages together
FIELD_BYTES_MAX = 64 * 1024  # of a sampling field, except:
SCHEMA_BYTES_MAX = 1024 * 1024  # a schema in `response_format`, or `logit_bias`
ROLES = ("system", "developer", "user", "assistant", "tool")
PLAIN_ROLES = frozenset({"system", "developer", "user", "assistant"})
UNCHANGED_ROLES = frozenset({"system", "user", "assistant"})
SYSTEM_ROLES = frozenset({"system", "developer"})
LARGE_SAMPLING = ("response_format", "logit_bias")
TOOL_FIELDS = ("tools", "tool_choice", "parallel_tool_calls")
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
# A backslash and what it escapes, or a whole surrogate pair, or text without a backslash.
WHOLE_SURROGATES = re.compile(
    rb"(?:[^\\]++|\\[^u]|\\u(?![dD][89a-fA-F])|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})*+"
)
CUSTOM_TOOLS = frozenset({"custom_tools"})
FALSY = (b"null", b"{}", b"[]", b'""', b"false", b"0")


class _Message(msgspec.Struct):
    role: str
    content: str | list[Part] | None = None
    tool_calls: list[CallFields] | None = None
    tool_call_id: str | None = None
    function_call: msgspec.Raw = NOTHING
    refusal: str | None = None
    annotations: msgspec.Raw = NOTHING  # of our own replies


class Body(msgspec.Struct, forbid_unknown_fields=True):
    """The fields that are used. What has a structure of its own stays raw."""

    model: str | None = None
    messages: msgspec.Raw = NOTHING
    stream: bool | None = None
    stream_options: msgspec.Raw = NOTHING  # whatever it says, a stream ends with its usage
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


class OpenBody(Body, forbid_unknown_fields=False):
    """The same of a body that has unknown fields too: they are skipped."""


_BODY, _OPEN_BODY = msgspec.json.Decoder(Body), msgspec.json.Decoder(OpenBody)
_KNOWN = frozenset(Body.__struct_fields__)
_MESSAGES = msgspec.json.Decoder(list[_Message] | None)
_TOOLS = msgspec.json.Decoder(list[ToolFields] | None)
_NUMBER = msgspec.json.Decoder(float | None)
_RAW_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
RAW_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])


def parse_chat(body: bytes | bytearray) -> ChatRequest:
    return check_body(*decode_body(body))


def check_body(body: Body, extra: Fields = NO_FIELDS) -> ChatRequest:
    messages = _decode(_MESSAGES, body.messages, "messages")
    tools = _decode(_TOOLS, body.tools, "tools") if body.tools is not NOTHING else None
    _refuse_unsupported(body, extra, tools)
    if not messages:
        raise InvalidRequest(_messages_hint(extra))
    if not tools and (body.tool_choice is not NOTHING or body.parallel_tool_calls is not NOTHING):
        extra = {**extra, **_given(body, TOOL_FIELDS[1:])}
    plain_texts = _plain_texts(messages)
    are_texts = plain_texts is not None
    texts = _check_messages(messages) if plain_texts is None else plain_texts
    raw_messages = RAW_ITEMS.decode(body.messages)
    forwarded = raw_messages if are_texts else list(map(_to_upstream, messages, raw_messages))
    leading = _count_leading_system(messages)
    system = "\n\n".join(filter(None, texts[:leading])) if leading else ""
    attached = NOTHING_ATTACHED if are_texts else _attached(messages, forwarded, reads_files=not tools)
    has_custom_tools = bool(tools or not are_texts) and _has_custom_tools(messages, tools or ())
    return ChatRequest(
        model=body.model,
        messages=forwarded,
        texts=texts,
        stream=body.stream or False,
        max_tokens=_max_tokens(body, has_tools=bool(tools)),
        sampling=_sampling(body),
        tools=_given(body, TOOL_FIELDS) if tools else {},
        leading_system=leading,
        system=msgspec.json.encode(system)[1:-1] if system else b"",
        needs=attached.needs | CUSTOM_TOOLS if has_custom_tools else attached.needs,
        files=attached.files,
        media=attached.media,
        extra=extra,
        excluded=attached.excluded,
    )


def check_context(counted: int) -> None:
    if counted > CONTEXT_TOKENS_MAX:
        raise ContextOverflow(CONTEXT_TOKENS_MAX, counted)


def decode_body(body: bytes | bytearray) -> tuple[Body, Fields]:
    """The known fields, and the others, which most requests do not have.

    Raw JSON is not decoded later, so invalid UTF-8 and lone surrogates in it must be found here.
    """
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError:
            raise InvalidRequest("The body is not valid UTF-8.") from None
    extra = NO_FIELDS
    try:
        decoded = _BODY.decode(body)
    except (msgspec.DecodeError, RecursionError):
        decoded = _decode(_OPEN_BODY, body)
        extra = read_extra_fields(body, _KNOWN)
    if body.find(b"\\u") >= 0 and SURROGATE.search(body) and not WHOLE_SURROGATES.fullmatch(body):
        raise InvalidRequest("The body is not valid JSON: a string has half of a surrogate pair.")
    return decoded, extra


def _decode(decoder: msgspec.json.Decoder[T], raw: bytes | bytearray | msgspec.Raw, field: str = "") -> T:
    try:
        return decoder.decode(raw)
    except RecursionError:
        raise InvalidRequest("The body is nested too deeply.") from None
    except msgspec.ValidationError as error:
        raise InvalidRequest(_describe(error, field)) from None
    except msgspec.DecodeError as error:
        reason = str(error).removeprefix("JSON is malformed: ") if raw else "it is empty"
        raise InvalidRequest(f"The body is not valid JSON: {reason}.") from None


def _describe(error: msgspec.ValidationError, field: str) -> str:
    """'Expected `str`, got `int` - at `$.model`' -> 'model: expected `str`, got `int`.'"""
    what, _, where = str(error).partition(" - at `$")
    path = field + where.rstrip("`") if field else where.rstrip("`").lstrip(".") or "The body"
    return f"{path}: {what[:1].lower()}{what[1:]}."


def _given(body: Body, names: tuple[str, ...]) -> dict[str, msgspec.Raw]:
    """Those of the fields that were sent and are not null, as raw JSON."""
    fields = {}
    for name in names:
        raw = getattr(body, name)
        if raw is not NOTHING and raw != NOTHING:
            fields[name] = raw
    return fields


def _sampling(body: Body) -> dict[str, msgspec.Raw]:
    fields = _given(body, SAMPLING)
    for name, raw in fields.items():
        bytes_max = SCHEMA_BYTES_MAX if name in LARGE_SAMPLING else FIELD_BYTES_MAX
        if memoryview(raw).nbytes > bytes_max:
            raise InvalidRequest(f"{name}: is larger than {bytes_max // 1024} KiB, which is the maximum.")
    return fields


def _is_truthy(raw: msgspec.Raw | None) -> bool:
    return raw is not None and raw is not NOTHING and bytes(memoryview(raw)[:6]) not in FALSY


def _refuse_unsupported(body: Body, extra: Fields, tools: list[ToolFields] | None) -> None:
    if body.n is not None and body.n != 1:
        raise InvalidRequest("n: not implemented for values other than 1. Send one request per choice.")
    if body.logprobs or body.top_logprobs:
        raise InvalidRequest("logprobs and top_logprobs: not implemented here. Leave them out.")
    if body.modalities and body.modalities != ["text"]:
        raise InvalidRequest('modalities: only text is implemented here. Send ["text"], or leave it out.')
    if extra and (_is_truthy(extra.get("functions")) or _is_truthy(extra.get("function_call"))):
        raise InvalidRequest("functions and function_call: not supported. Use `tools` and `tool_choice` instead.")
    if body.temperature is not NOTHING:
        temperature = _decode(_NUMBER, body.temperature, "temperature")
        if temperature is not None and not 0 <= temperature <= 2:
            raise InvalidRequest("temperature: must be between 0 and 2.")
    if tools or body.tool_choice is not NOTHING:
        check_choice(body.tool_choice, check_tools(tools or ()))


def _messages_hint(extra: Fields) -> str:
    if "input" in extra:
        return "messages: missing. This body has the shape of the Responses API; send `messages` to this path instead."
    return "messages: must be an array of at least one message."


def _plain_texts(messages: list[_Message]) -> list[str] | None:
    """The texts, if each message is just one. This is the usual case: there is nothing more to check or to change."""
    if len(messages) > MESSAGES_MAX:
        raise InvalidRequest(f"messages: {len(messages)} were sent; at most {MESSAGES_MAX} are allowed.")
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


def _check_messages(messages: list[_Message]) -> list[str]:
    """Check the messages and return their texts. Each tool call must have an answer."""
    _check_numbers(messages)
    texts = [_check_message(index, message) for index, message in enumerate(messages)]
    if any(message.tool_calls or message.role == "tool" for message in messages):
        history = History()
        for index, message in enumerate(messages):
            history.follow(f"messages[{index}]", message.role, message.tool_calls or (), message.tool_call_id)
        history.end()
    return texts


def _check_numbers(messages: list[_Message]) -> None:
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


def _check_message(index: int, message: _Message) -> str:
    """Check a message and return its text."""
    is_plain = message.role in PLAIN_ROLES and isinstance(message.content, str)
    if is_plain and not message.tool_calls and message.function_call is NOTHING:
        return str(message.content)
    path = f"messages[{index}]"
    if message.role == "function" or _is_truthy(message.function_call):
        raise InvalidRequest(
            f"{path}: functions are not supported. Use `tools`: send calls as `tool_calls` of an assistant message, "
            "and each result as a message of the role `tool`."
        )
    if message.role not in ROLES:
        raise InvalidRequest(f"{path}.role: must be one of {', '.join(ROLES)}.")
    if message.role == "tool" and not message.tool_call_id:
        raise InvalidRequest(f"{path}.tool_call_id: a tool message must name the call that it answers.")
    if message.content is None:
        if message.role == "assistant" and (message.tool_calls is not None or message.refusal):
            return _text_of_calls(message) + (message.refusal or "")
        raise InvalidRequest(f"{path}.content: must be a string or an array of parts.")
    if isinstance(message.content, str):
        return message.content + _text_of_calls(message)
    return _text_of_calls(message) + "".join(
        check_part(f"{path}.content[{index}]", part, message.role) for index, part in enumerate(message.content)
    )


def _text_of_calls(message: _Message) -> str:
    return "".join([call.text for call in message.tool_calls or ()])


def _count_leading_system(messages: list[_Message]) -> int:
    for number, message in enumerate(messages):
        if message.role not in SYSTEM_ROLES:
            return number
    return len(messages)


def _has_custom_tools(messages: list[_Message], tools: Sequence[ToolFields]) -> bool:
    calls = (call for message in messages for call in message.tool_calls or ())
    return any(tool.type == "custom" for tool in tools) or any(call.type == "custom" for call in calls)


def _attached(messages: list[_Message], forwarded: list[msgspec.Raw], *, reads_files: bool) -> Attached:
    """Files are found in the messages as they are forwarded: that is where their text is put."""
    contents = [(index, one.content) for index, one in enumerate(messages) if isinstance(one.content, list)]
    return find_attached(forwarded, contents, reads_files=reads_files)


def _to_upstream(message: _Message, raw: msgspec.Raw) -> msgspec.Raw:
    """The message unchanged, except what upstreams do not accept.

    That is the role `developer`, refusals as parts of the content, empty `tool_calls`, our call ids and annotations.
    """
    has_refusal = isinstance(message.content, list) and any(part.type == "refusal" for part in message.content)
    if has_refusal:
        raw = _with_text(message, raw)
    if message.role == "assistant" and message.annotations != NOTHING:
        raw = _without_annotations(raw)
    if message.tool_calls or message.role == "tool":
        return with_upstream_ids(raw)
    if message.role != "developer" and message.tool_calls != []:
        return raw
    fields = _RAW_FIELDS.decode(raw)
    if message.role == "developer":
        fields["role"] = msgspec.Raw(b'"system"')
    if message.tool_calls == []:
        del fields["tool_calls"]
        if message.content is None:
            fields["content"] = msgspec.Raw(b'""')
    return msgspec.Raw(msgspec.json.encode(fields))


def _without_annotations(raw: msgspec.Raw) -> msgspec.Raw:
    fields = _RAW_FIELDS.decode(raw)
    del fields["annotations"]
    return msgspec.Raw(msgspec.json.encode(fields))


def _with_text(message: _Message, raw: msgspec.Raw) -> msgspec.Raw:
    """The message with the text of its parts as its content."""
    parts = message.content if isinstance(message.content, list) else []
    text = "".join([part.text or part.refusal or "" for part in parts])
    return msgspec.Raw(msgspec.json.encode(_RAW_FIELDS.decode(raw) | {"content": text}))


def _max_tokens(body: Body, *, has_tools: bool) -> int | None:
    limit, other = body.max_tokens, body.max_completion_tokens
    if limit is None or (other is not None and other < limit):
        limit, other = other, limit
    if limit is None:
        return None
    if limit < 1 or (type(limit) is float and limit % 1) or (type(other) is float and other % 1):  # 17.0 is an integer
        raise InvalidRequest("max_tokens: must be a positive integer.")
    if has_tools:  # fitted to the route's window later
        return int(min(limit, OUTPUT_TOKENS_MAX))
    if limit > OUTPUT_TOKENS_MAX:
        raise InvalidRequest(f"max_tokens: at most {OUTPUT_TOKENS_MAX:,} tokens are allowed per request.")
    return limit if type(limit) is int else int(limit)
