"""Tool calls for a model whose chat template knows none: the embedded default's.

A call is made in two steps. Which tool, if any: by the words that a message shares with a tool, else by the model, held
to the tools' names. Then its arguments: by the model, held by a grammar to the tool's schema, so that they are always
valid. A small model may choose badly; what goes over the wire is right all the same.
"""

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from cadenza.core.records import Route
from cadenza.core.tool_calls import ToolCallPart
from cadenza.upstreams.base import Ask, Fault, FaultKind, OpenReply, PassOn, Piece, Upstream
from cadenza.upstreams.embedded.messages import OUTPUT_TOKENS

NONE = "none"
STRING_CHARS_MAX = 120  # of a string whose schema sets no limit: a small model may never end one
ITEMS_MAX = 4
DESCRIPTION_CHARS_MAX = 200
WORD = re.compile(r"[a-z]{3,}")
COMMON_WORDS = frozenset(
    (
        *(
            "about",
            "and",
            "any",
            "are",
            "can",
            "could",
            "did",
            "does",
            "for",
            "from",
            "get",
            "give",
            "had",
            "has",
            "have",
        ),
        *("how", "into", "its", "make", "not", "out", "over", "please", "some", "tell", "than", "that", "the", "them"),
        *(
            "then",
            "these",
            "they",
            "this",
            "those",
            "use",
            "using",
            "was",
            "what",
            "when",
            "where",
            "which",
            "who",
            "why",
        ),
        *("will", "with", "would", "you", "your"),
    )
)
TALK = ("Hi, how are you?", "Tell me about history.", "What is the meaning of life?")


class Tool(msgspec.Struct, frozen=True):
    """A function that the client offers."""

    name: str
    description: str
    parameters: dict[str, Any]


@asynccontextmanager
async def open_with_tools(endpoint: Upstream, route: Route, ask: Ask) -> AsyncIterator[OpenReply]:
    """As the endpoint's own `open`, for an ask with tools."""
    tools = _read_tools(ask.tools["tools"])
    choice = msgspec.json.decode(ask.tools.get("tool_choice", msgspec.Raw(b'"auto"')))
    limit = ask.output_limit(route) if ask.max_tokens else OUTPUT_TOKENS
    ask = msgspec.structs.replace(ask, messages=_tell(ask.messages), tools={}, max_tokens=limit)
    name = await _choose(endpoint, route, ask, tools, choice)
    if name is None:
        async with endpoint.open(route, ask) as reply:
            yield reply
    else:
        try:
            wanted = _ask_for_arguments(ask, tools[name])
        except RecursionError:
            raise Fault(FaultKind.REFUSED) from None
        async with endpoint.open(route, wanted) as reply:
            yield CallReply(reply, name)


class CallReply:
    """A reply that is JSON arguments and nothing else, told as a call."""

    def __init__(self, reply: OpenReply, name: str) -> None:
        self._reply = reply
        self._name = name

    async def read(self, _pass_on: PassOn | None = None) -> list[Piece]:
        return [self._as_call(piece) for piece in await self._reply.read()]

    def _as_call(self, piece: Piece) -> Piece:
        name, self._name = self._name, ""
        calls = (ToolCallPart(0, "", name, piece.content),) if name or piece.content else ()
        return msgspec.structs.replace(piece, content="", calls=calls)


async def _choose(endpoint: Upstream, route: Route, ask: Ask, tools: dict[str, Tool], choice: object) -> str | None:
    """The tool to be called, or None for an answer in words."""
    if isinstance(choice, dict):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        return name if isinstance(name, str) and name in tools else None
    last = msgspec.json.decode(ask.messages[-1], type=dict[str, Any])
    is_answered = last["role"] == "tool"  # the result of a call wants words, not another call
    if choice == NONE or not tools or (choice != "required" and is_answered):
        return None
    said = last["content"] if isinstance(last["content"], str) else ""
    if name := _by_words(said, tools):
        return name
    names = [*tools] if choice == "required" else [*tools, NONE]
    picked = await _by_model(endpoint, route, said, tools, names)
    return picked if picked in tools else None


def _by_words(said: str, tools: dict[str, Tool]) -> str | None:
    """The tool that shares most words with what was said, if any does."""
    heard = _stems(said)
    shared = {name: len(heard & _stems(f"{name} {tool.description}")) for name, tool in tools.items()}
    best = max(shared, key=lambda name: shared[name])
    return best if shared[best] else None


def _stems(text: str) -> set[str]:
    words = WORD.findall(text.lower().replace("_", " ").replace("-", " "))
    return {word[:5] for word in words if word not in COMMON_WORDS}


async def _by_model(endpoint: Upstream, route: Route, said: str, tools: dict[str, Tool], names: list[str]) -> str:
    """The model is shown what each tool is for, and may only say a name."""
    examples = [(text, NONE) for text in TALK if NONE in names] + [
        (t.description or t.name, t.name) for t in tools.values()
    ]
    messages = [_message("system", "Name the tool that the message needs.")]
    for text, name in examples:
        messages += [_message("user", text), _message("assistant", name)]
    grammar = "root ::= " + " | ".join(msgspec.json.encode(name).decode() for name in names)
    sampling = {"grammar": msgspec.Raw(msgspec.json.encode(grammar)), "temperature": msgspec.Raw(b"0")}
    question = Ask([*messages, _message("user", said)], sampling, max_tokens=64, stream=False)
    async with endpoint.open(route, question) as reply:
        return "".join([piece.content for piece in await reply.read()])


def _ask_for_arguments(ask: Ask, tool: Tool) -> Ask:
    about = f"Call the function {tool.name}: {tool.description}. Answer with its arguments, as JSON, and nothing else."
    schema = {"type": "json_schema", "json_schema": {"name": tool.name, "schema": _bounded(tool.parameters)}}
    sampling = ask.sampling | {"response_format": msgspec.Raw(msgspec.json.encode(schema))}
    return msgspec.structs.replace(ask, messages=[*ask.messages, _message("system", about)], sampling=sampling)


def _bounded(schema: object) -> object:
    """The schema with an end to everything: what fits it fits the client's own."""
    if isinstance(schema, list):
        return [_bounded(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    bounded = {name: value if name in ("enum", "const") else _bounded(value) for name, value in schema.items()}
    kind = schema.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    if "string" in kinds and not {"enum", "const", "pattern", "format", "maxLength"} & schema.keys():
        bounded["maxLength"] = _at_least(STRING_CHARS_MAX, schema.get("minLength"))
    if "array" in kinds and "maxItems" not in schema:
        bounded["maxItems"] = _at_least(ITEMS_MAX, schema.get("minItems"))
    if "object" in kinds and "additionalProperties" not in schema:
        bounded["additionalProperties"] = False
    return bounded


def _at_least(limit: int, least: object) -> int:
    return max(limit, least) if isinstance(least, int) else limit


def _tell(messages: Sequence[msgspec.Raw]) -> list[msgspec.Raw]:
    """The history in words that the template knows: parts become text, and a result bears its tool's name.

    Calls are left out: a small model that reads one as text says it again.
    """
    told, names = list[msgspec.Raw](), dict[str, str]()
    for raw in messages:
        message = msgspec.json.decode(raw, type=dict[str, Any])
        calls = message.get("tool_calls") or []
        names |= {call["id"]: call["function"]["name"] for call in calls if call.get("function")}
        text = _text(message.get("content"))
        if message["role"] == "tool" and (name := names.get(message["tool_call_id"])):
            text = f"{name}: {text}"
        if text or not calls:
            told.append(_message(message["role"], text))
    return told


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
            raise Fault(FaultKind.REFUSED)
        function = item["function"]
        description = (function.get("description") or "")[:DESCRIPTION_CHARS_MAX].rstrip(". ")
        parameters = function.get("parameters") or {"type": "object", "properties": {}}
        tools[function["name"]] = Tool(function["name"], description, parameters)
    return tools
