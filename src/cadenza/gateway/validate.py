"""Parses the body of a chat request into a ChatRequest, or refuses it with a 400 that says what to correct.

Messages and sampling fields stay raw JSON and go upstream unchanged, except that the role `developer` becomes `system`.
Everything that OpenAI accepts is accepted, but for its deprecated `functions`; an unknown top-level field is dropped.
"""

import re
from typing import Any

import msgspec

from cadenza.core.errors import ContextOverflow, InvalidRequest
from cadenza.core.records import CONTEXT_TOKENS_MAX, OUTPUT_TOKENS_MAX
from cadenza.gateway.tools import CallFields, History, ToolFields, check_tools, with_upstream_ids

ROLES = ("system", "developer", "user", "assistant", "tool")
PLAIN_ROLES = frozenset({"system", "developer", "user", "assistant"})
SYSTEM_ROLES = frozenset({"system", "developer"})
SAMPLING = frozenset(
    {
        "temperature",
        "top_p",
        "stop",
        "seed",
        "presence_penalty",
        "frequency_penalty",
        "response_format",
        "reasoning_effort",
        "logit_bias",
    }
)
TOOL_FIELDS = ("tools", "tool_choice", "parallel_tool_calls")
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
NULL = b"null"


class ChatRequest(msgspec.Struct, frozen=True):
    """A valid chat request."""

    model: str | None
    messages: list[msgspec.Raw]
    texts: list[str]  # the texts whose tokens make up the prompt
    stream: bool
    max_tokens: int | None
    sampling: dict[str, msgspec.Raw]
    tools: dict[str, msgspec.Raw]  # the fields of the tool path, unchanged; empty on the plain path
    leading_system: int = 0  # how many system messages it begins with
    has_custom_tools: bool = False  # it defines or has called tools of type `custom`

    @property
    def room_tokens(self) -> int:
        """How much output a window must have room for, so that the prompt need not be counted exactly."""
        return self.max_tokens or OUTPUT_TOKENS_MAX


class _Part(msgspec.Struct):
    type: str
    text: str | None = None
    refusal: str | None = None


class _Message(msgspec.Struct):
    role: str
    content: str | list[_Part] | None = None
    tool_calls: list[CallFields] | None = None
    tool_call_id: str | None = None
    function_call: Any = None
    refusal: str | None = None


class _Fields(msgspec.Struct):
    model: str | None = None
    messages: list[_Message] | None = None
    stream: bool | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[ToolFields] | None = None
    tool_choice: Any = None
    functions: Any = None
    function_call: Any = None


_FIELDS = msgspec.json.Decoder(_Fields)
_RAW_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_RAW_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])
_ANYTHING = msgspec.json.Decoder()


def parse_chat(body: bytes) -> ChatRequest:
    fields, raw = _decode(body)
    _refuse_unsupported(fields)
    if not fields.messages:
        raise InvalidRequest(_messages_hint(raw))
    texts = _check_messages(fields.messages)
    raw_messages = _RAW_ITEMS.decode(raw["messages"])
    tools = (
        {name: raw[name] for name in TOOL_FIELDS if name in raw and bytes(raw[name]) != NULL} if fields.tools else {}
    )
    texts += [bytes(raw["tools"]).decode()] if tools else []
    return ChatRequest(
        model=fields.model,
        messages=[
            _to_upstream(message, raw_message)
            for message, raw_message in zip(fields.messages, raw_messages, strict=True)
        ],
        texts=texts,
        stream=fields.stream or False,
        max_tokens=_max_tokens(fields),
        sampling={name: given for name, given in raw.items() if name in SAMPLING and bytes(given) != NULL},
        tools=tools,
        leading_system=_count_leading_system(fields.messages),
        has_custom_tools=_has_custom_tools(fields),
    )


def check_context(counted: int) -> None:
    if counted > CONTEXT_TOKENS_MAX:
        raise ContextOverflow(CONTEXT_TOKENS_MAX, counted)


def _decode(body: bytes) -> tuple[_Fields, dict[str, msgspec.Raw]]:
    try:
        if not body.isascii():
            body.decode()  # raw JSON is not decoded later, so invalid UTF-8 in it must be found here
        if b"\\u" in body and SURROGATE.search(body):
            _ANYTHING.decode(body)  # nor are its escapes, so a lone surrogate must be found here too
        return _FIELDS.decode(body), _RAW_FIELDS.decode(body)
    except RecursionError:
        raise InvalidRequest("The body is nested too deeply.") from None
    except UnicodeDecodeError:
        raise InvalidRequest("The body is not valid UTF-8.") from None
    except msgspec.ValidationError as error:
        raise InvalidRequest(_describe(error)) from None
    except msgspec.DecodeError as error:
        reason = str(error).removeprefix("JSON is malformed: ") if body else "it is empty"
        raise InvalidRequest(f"The body is not valid JSON: {reason}.") from None


def _describe(error: msgspec.ValidationError) -> str:
    """'Expected `str`, got `int` - at `$.model`' -> 'model: expected `str`, got `int`.'"""
    what, _, where = str(error).partition(" - at `$")
    path = where.rstrip("`").lstrip(".") or "The body"
    return f"{path}: {what[:1].lower()}{what[1:]}."


def _refuse_unsupported(fields: _Fields) -> None:
    if fields.n is not None and fields.n != 1:
        raise InvalidRequest("n: not implemented for values other than 1. Send one request per choice.")
    if fields.logprobs or fields.top_logprobs is not None:
        raise InvalidRequest("logprobs and top_logprobs: not implemented here. Leave them out.")
    if fields.functions or fields.function_call:
        raise InvalidRequest("functions and function_call: not supported. Use `tools` and `tool_choice` instead.")
    if fields.temperature is not None and not 0 <= fields.temperature <= 2:
        raise InvalidRequest("temperature: must be between 0 and 2.")
    if fields.tools:
        check_tools(fields.tools, fields.tool_choice)
    elif fields.tool_choice not in (None, "auto", "none"):
        raise InvalidRequest("tool_choice: asks for a call, but the request defines no tools.")


def _messages_hint(raw: dict[str, msgspec.Raw]) -> str:
    if "input" in raw:
        return "messages: missing. This body has the shape of the Responses API; send `messages` to this path instead."
    return "messages: must be an array of at least one message."


def _check_messages(messages: list[_Message]) -> list[str]:
    """Check the messages and return their texts. Each tool call must have an answer."""
    texts = [_check_message(index, message) for index, message in enumerate(messages)]
    if any(message.tool_calls or message.role == "tool" for message in messages):
        history = History()
        for index, message in enumerate(messages):
            history.follow(f"messages[{index}]", message.role, message.tool_calls or (), message.tool_call_id)
        history.end()
    return texts


def _check_message(index: int, message: _Message) -> str:
    """Check a message and return its text."""
    is_plain = message.role in PLAIN_ROLES and isinstance(message.content, str)
    if is_plain and not message.tool_calls and not message.function_call:
        return str(message.content)
    path = f"messages[{index}]"
    if message.role == "function" or message.function_call:
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
        raise InvalidRequest(f"{path}.content: must be a string or an array of text parts.")
    if isinstance(message.content, str):
        return message.content + _text_of_calls(message)
    return _text_of_calls(message) + "".join(
        _check_part(f"{path}.content[{index}]", part, message.role) for index, part in enumerate(message.content)
    )


def _text_of_calls(message: _Message) -> str:
    return "".join([call.text for call in message.tool_calls or ()])


def _count_leading_system(messages: list[_Message]) -> int:
    return next((n for n, message in enumerate(messages) if message.role not in SYSTEM_ROLES), len(messages))


def _has_custom_tools(fields: _Fields) -> bool:
    calls = (call for message in fields.messages or () for call in message.tool_calls or ())
    return any(tool.type == "custom" for tool in fields.tools or ()) or any(call.type == "custom" for call in calls)


def _check_part(path: str, part: _Part, role: str) -> str:
    if part.type == "refusal" and role == "assistant" and part.refusal is not None:
        return part.refusal
    if part.type != "text":
        raise InvalidRequest(f"{path}.type: only parts of type 'text' are supported.")
    if part.text is None:
        raise InvalidRequest(f"{path}.text: missing.")
    return part.text


def _to_upstream(message: _Message, raw: msgspec.Raw) -> msgspec.Raw:
    """The message unchanged, except what upstreams do not accept.

    That is the role `developer`, refusals as parts of the content, empty `tool_calls` and our call ids.
    """
    has_refusal = isinstance(message.content, list) and any(part.type == "refusal" for part in message.content)
    if has_refusal:
        raw = _with_text(message, raw)
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


def _with_text(message: _Message, raw: msgspec.Raw) -> msgspec.Raw:
    """The message with the text of its parts as its content."""
    parts = message.content if isinstance(message.content, list) else []
    text = "".join([part.text or part.refusal or "" for part in parts])
    return msgspec.Raw(msgspec.json.encode(_RAW_FIELDS.decode(raw) | {"content": text}))


def _max_tokens(fields: _Fields) -> int | None:
    given = [limit for limit in (fields.max_tokens, fields.max_completion_tokens) if limit is not None]
    if not given:
        return None
    limit = min(given)
    if limit < 1:
        raise InvalidRequest("max_tokens: must be a positive integer.")
    if fields.tools:  # fitted to the route's window later
        return min(limit, OUTPUT_TOKENS_MAX)
    if limit > OUTPUT_TOKENS_MAX:
        raise InvalidRequest(f"max_tokens: at most {OUTPUT_TOKENS_MAX:,} tokens are allowed per request.")
    return limit
