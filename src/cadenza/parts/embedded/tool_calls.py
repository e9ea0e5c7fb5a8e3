"""Tool calls for a model whose chat template has no form for them, like that of the bundled model.

The tool is the one that shares most words with the message: a small model chooses worse. The model writes its arguments
under a grammar made from the tool's schema (`response_format`), so they are always valid.
"""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from cadenza.core.content import Content
from cadenza.core.faults import FaultKind
from cadenza.core.records import Route
from cadenza.core.tool_calls import ToolCallPart
from cadenza.upstreams.base import Ask, Fault, OpenReply, Piece, Sink, Upstream

# Output limits for requests without max_tokens.
ANSWER_TOKENS = 256  # about a minute where the model writes 4 tokens a second
CALL_TOKENS = 1024  # half a call is worth nothing

STRING_CHARS_MAX = 120  # of a string whose schema sets no limit: a small model may never end it
ITEMS_MAX = 4
DESCRIPTION_CHARS_MAX = 200
WORD = re.compile(r"[a-z]{3,}")
COMMON = (
    "about and any are can could did does for from get give had has have how into its make not out over please some "
    "tell than that the them then these they this those use using was what when where which who why will with would "
    "you your"
)
COMMON_WORDS = frozenset(COMMON.split())


class Tool(Content, msgspec.Struct, frozen=True):
    """A function that the client offers."""

    name: str
    description: str
    parameters: dict[str, Any]


async def open_with_tools(endpoint: Upstream, route: Route, ask: Ask) -> OpenReply:
    """Like the endpoint's own `open`, for an ask with tools."""
    tools = _read_tools(ask.tools["tools"])
    choice = msgspec.json.decode(ask.tools.get("tool_choice", msgspec.Raw(b'"auto"')))
    messages = _as_plain_text(ask.messages)
    name = _choose(msgspec.json.decode(messages[-1], type=dict[str, str]), tools, choice)
    limit = ask.output_limit(route) or CALL_TOKENS
    if ask.client_limit is None:
        limit = min(limit, CALL_TOKENS if name else ANSWER_TOKENS)
    plain = msgspec.structs.replace(ask, messages=messages, tools={}, max_tokens=limit, counted_bytes=None)
    if name is None:
        return await endpoint.open(route, plain)
    try:
        wanted = _ask_for_arguments(plain, tools[name])
    except RecursionError:
        raise Fault(FaultKind.INVALID) from None
    return CallReply(await endpoint.open(route, wanted), name)


class CallReply:
    """A reply that consists of JSON arguments, and the sink that turns its text into parts of one tool call."""

    def __init__(self, reply: OpenReply, name: str) -> None:
        self._reply = reply
        self._name = name  # until it was sent

    async def deliver(self, sink: Sink) -> None:
        self._sink = sink
        await self._reply.deliver(self)

    async def close(self) -> None:
        await self._reply.close()

    def take_texts(self, texts: list[str]) -> bool:
        for text in texts:
            self.take(Piece(text, has_begun=True))
        return self.flush()

    def flush(self) -> bool:
        return self._sink.flush()

    async def drain(self) -> None:
        await self._sink.drain()

    def take(self, piece: Piece) -> None:
        name, self._name = self._name, ""
        calls = (ToolCallPart(0, "", name, piece.content),) if name or piece.content else ()
        self._sink.take(msgspec.structs.replace(piece, content="", calls=calls))


def _choose(message: dict[str, str], tools: dict[str, Tool], choice: object) -> str | None:
    """The name of the tool to call, or None for an answer in words."""
    if isinstance(choice, dict):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        return name if isinstance(name, str) and name in tools else None
    is_result = message["role"] == "tool"  # the result of a call is answered in words, not by another call
    if choice == "none" or not tools or (choice != "required" and is_result):
        return None
    wanted = _stems(message["content"])
    shared = {name: len(wanted & _stems(f"{name} {tool.description}")) for name, tool in tools.items()}
    best = max(shared, key=lambda name: shared[name])
    return best if shared[best] or choice == "required" else None


def _stems(text: str) -> set[str]:
    words = WORD.findall(text.lower().replace("_", " ").replace("-", " "))
    return {word[:5] for word in words if word not in COMMON_WORDS}


def _ask_for_arguments(ask: Ask, tool: Tool) -> Ask:
    about = f"Call the function {tool.name}: {tool.description}. Answer with its arguments, as JSON, and nothing else."
    schema = {"type": "json_schema", "json_schema": {"name": tool.name, "schema": _bounded(tool.parameters)}}
    sampling = ask.sampling | {"response_format": msgspec.Raw(msgspec.json.encode(schema))}
    return msgspec.structs.replace(ask, messages=[*ask.messages, _message("system", about)], sampling=sampling)


def _bounded(schema: object) -> object:
    """The schema with a limit on every string, array and object. A value that fits it also fits the client's schema."""
    if isinstance(schema, list):
        return [_bounded(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    bounded = {name: value if name in ("enum", "const") else _bounded(value) for name, value in schema.items()}
    type_ = schema.get("type")
    types = type_ if isinstance(type_, list) else [type_]
    if "string" in types and not {"enum", "const", "pattern", "format", "maxLength"} & schema.keys():
        bounded["maxLength"] = _at_least(STRING_CHARS_MAX, schema.get("minLength"))
    if "array" in types and "maxItems" not in schema:
        bounded["maxItems"] = _at_least(ITEMS_MAX, schema.get("minItems"))
    if "object" in types and "additionalProperties" not in schema:
        bounded["additionalProperties"] = False
    return bounded


def _at_least(limit: int, minimum: object) -> int:
    return max(limit, minimum) if isinstance(minimum, int) else limit


def _as_plain_text(messages: Sequence[msgspec.Raw]) -> list[msgspec.Raw]:
    """The history as messages of plain text, which every template knows. A tool's result begins with the tool's name.

    Calls are left out: a small model that reads a call as text repeats it.
    """
    texts, names = list[msgspec.Raw](), dict[str, str]()
    for raw in messages:
        message = msgspec.json.decode(raw, type=dict[str, Any])
        calls = message.get("tool_calls") or []
        names |= {call["id"]: call["function"]["name"] for call in calls if call.get("function")}
        text = _text(message.get("content"))
        if message["role"] == "tool" and (name := names.get(message["tool_call_id"])):
            text = f"{name}: {text}"
        if text or not calls:
            texts.append(_message(message["role"], text))
    return texts


def _text(content: object) -> str:
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return content if isinstance(content, str) else ""


def _message(role: str, content: str) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode({"role": role, "content": content}))


def _read_tools(raw: msgspec.Raw) -> dict[str, Tool]:
    tools = {}
    for item in msgspec.json.decode(raw, type=list[dict[str, Any]]):
        if item.get("type") != "function":
            raise Fault(FaultKind.INVALID)
        function = item["function"]
        description = (function.get("description") or "")[:DESCRIPTION_CHARS_MAX].rstrip(". ")
        parameters = function.get("parameters") or {"type": "object", "properties": {}}
        tools[function["name"]] = Tool(function["name"], description, parameters)
    return tools
