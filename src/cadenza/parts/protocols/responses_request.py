"""Translates the body of a request to /v1/responses into the body of a chat request.

Nothing is stored, so whatever refers to stored things is refused, with what to send instead. Tools and items that only
OpenAI can serve are left out and named in `x-cadenza-ignored`. All other fields keep their names: the chat knows them,
or names them too.
"""

import base64
from typing import Any

import msgspec

from cadenza.core.content import Content
from cadenza.core.errors import InvalidRequest
from cadenza.core.message_json import RAW_FIELDS
from cadenza.gateway.large.tasks import Translated
from cadenza.gateway.large.weight import Steps
from cadenza.gateway.messages import PLAIN_ROLES, SHOWN_CHARS_MAX, is_truthy
from cadenza.gateway.tools import CHOICE_BYTES_MAX, NOTHING
from cadenza.gateway.validate import decode_field
from cadenza.parts.protocols.translation import (
    TOOL_STEPS,
    TOOLS_SENT_MAX,
    Kept,
    check_name,
    fitting_name,
)

Grown = str | msgspec.Raw  # a text, or a list

ITEMS_MAX = 16_384
ITEM_STEPS = 2
COPIED_CHARS = 4096  # of a text that grows by a part: to copy so many is another step
INCLUDED_MAX = 32  # are named
ECHO_BYTES_MAX = 4096  # a longer field is not repeated in the reply
ECHOED = {
    *("instructions", "max_output_tokens", "metadata", "parallel_tool_calls", "prompt_cache_key", "reasoning"),
    *("safety_identifier", "temperature", "text", "tool_choice", "tools", "top_p", "user"),
}
# By the types of parts: the field with what they are about. That of a chat has the same name, but for files.
PARTS = dict.fromkeys(("input_text", "output_text", "text", "summary_text", "reasoning_text"), "text")
PARTS |= {"input_image": "image_url", "input_file": "file_data", "input_audio": "input_audio"}
MISSING = {
    "image_url": " No files are stored here: send a data URL.",
    "file_data": " No files are stored or fetched: send it as a data URL.",
}
REQUIRED = msgspec.Raw(b'"required"')
DETAILS = frozenset({"low", "high", "auto"})
REASONING = frozenset({"reasoning_content", "reasoning", "reasoning_details"})
ENCRYPTED = "reasoning.encrypted_content"
WHOLE_INPUT = "Nothing is stored here: send the whole conversation as `input`, with every item of earlier replies."
STORED = {
    "previous_response_id": WHOLE_INPUT,
    "conversation": WHOLE_INPUT,
    "prompt": "No prompts are stored here: send its text as `instructions` and `input`.",
    "background": "Replies are not stored here. Send `stream: true`, or wait for the reply.",
}


class InputPart(Content, msgspec.Struct):
    """The fields of a part of a content or of an output that are used."""

    type: str
    text: str | None = None
    refusal: str | None = None
    detail: str | None = None
    image_url: msgspec.Raw = NOTHING
    filename: msgspec.Raw = NOTHING
    file_data: msgspec.Raw = NOTHING
    input_audio: msgspec.Raw = NOTHING


class ItemKind(Content, msgspec.Struct):
    """What an item is. One without a type is a message."""

    type: str = "message"


class InputMessage(Content, msgspec.Struct):
    """A message."""

    role: str
    content: str | list[InputPart]


class InputCall(Content, msgspec.Struct):
    """A call of a function, with arguments, or of a custom tool, with an input."""

    call_id: str
    name: str
    namespace: str | None = None
    arguments: str = ""
    input: str = ""
    extra_content: msgspec.Raw = NOTHING


class InputOutput(Content, msgspec.Struct):
    """The output of a call."""

    call_id: str
    output: str | list[InputPart]


class InputReasoning(Content, msgspec.Struct):
    """Reasoning of an earlier reply."""

    summary: list[InputPart] = []
    content: list[InputPart] | None = None
    encrypted_content: str | None = None


class InputTool(Content, msgspec.Struct):
    """The fields of a tool, or of a `tool_choice`, that are used."""

    type: str
    name: str = ""
    namespace: str | None = None
    description: msgspec.Raw = NOTHING
    parameters: msgspec.Raw = NOTHING
    strict: msgspec.Raw = NOTHING
    format: msgspec.Raw = NOTHING
    tools: msgspec.Raw = NOTHING
    mode: msgspec.Raw = NOTHING


class Options(Content, msgspec.Struct):
    """The fields of `text` and of `reasoning` that are used."""

    format: msgspec.Raw = NOTHING
    verbosity: msgspec.Raw = NOTHING
    effort: msgspec.Raw = NOTHING


class ResponsesBody(Content, msgspec.Struct):
    """The fields that a chat has in another form."""

    input: str | list[msgspec.Raw] | None = None
    instructions: str | None = None
    max_output_tokens: int | float | None = None
    text: Options | None = None
    reasoning: Options | None = None
    tools: list[InputTool] | None = None
    tool_choice: msgspec.Raw = NOTHING
    include: list[str] | None = None
    metadata: msgspec.Raw = NOTHING  # repeated in the reply


_ANY, _STRING, _BODY = msgspec.json.Decoder(), msgspec.json.Decoder(str), msgspec.json.Decoder(ResponsesBody)
_KIND, _MESSAGE = msgspec.json.Decoder(ItemKind), msgspec.json.Decoder(InputMessage)
_CALL, _OUTPUT = msgspec.json.Decoder(InputCall), msgspec.json.Decoder(InputOutput)
_REASONED, _TOOL = msgspec.json.Decoder(InputReasoning), msgspec.json.Decoder(InputTool)
_TOOLS = msgspec.json.Decoder(list[InputTool])
_ENCODE = msgspec.json.Encoder().encode
TRANSLATED = frozenset(ResponsesBody.__struct_fields__) | STORED.keys()


def translate(body: bytes | bytearray, steps_max: float) -> Translated:
    fields, given = decode_field(RAW_FIELDS, body), decode_field(_BODY, body)
    for name, advice in () if STORED.keys().isdisjoint(fields) else STORED.items():
        if is_truthy(fields.get(name)):
            raise InvalidRequest(f"{name}: {advice}")
    if given.input is None:
        hint = " This body has the shape of a chat; send it to /v1/chat/completions." if "messages" in fields else ""
        raise InvalidRequest(f"input: missing.{hint}")
    fields = {name: raw for name, raw in fields.items() if raw != NOTHING}
    steps, include = Steps(steps_max), given.include or []
    conversation, tools = Conversation(steps), Tools(steps)
    if given.instructions:
        conversation.messages.append({"role": "system", "content": given.instructions})
    conversation.add_input(given.input)
    chat: dict[str, Any] = {name: raw for name, raw in fields.items() if name not in TRANSLATED}
    chat |= tools.translate(given) | _options(given) | conversation.ignored | {"messages": conversation.messages}
    chat |= {f"include.{name}": True for name in include[:INCLUDED_MAX] if name != ENCRYPTED}
    repeated = [(name, raw) for name, raw in fields.items() if name in ECHOED and len(raw) <= ECHO_BYTES_MAX]
    # Decoded and encoded again, so that it is on one line, as an event needs it.
    echo = {name: msgspec.Raw(_ENCODE(decode_field(_ANY, raw, name))) for name, raw in repeated}
    kept = Kept(echo, tools.names, ENCRYPTED in include)
    return Translated(memoryview(_ENCODE(chat)), _ENCODE(kept))


def _options(given: ResponsesBody) -> dict[str, Any]:
    """What a chat has under another name."""
    limit, text, reasoning = given.max_output_tokens, given.text or Options(), given.reasoning or Options()
    if limit is not None and (limit < 1 or limit % 1):
        raise InvalidRequest("max_output_tokens: must be a positive integer.")
    named = {"verbosity": text.verbosity, "reasoning_effort": reasoning.effort, "response_format": _format(text.format)}
    return {"max_tokens": limit} | {name: value for name, value in named.items() if value != NOTHING}


def _format(raw: msgspec.Raw) -> msgspec.Raw | dict[str, Any]:
    """The form of the text. A schema is an object of its own in a chat."""
    if raw == NOTHING:
        return raw
    fields = decode_field(RAW_FIELDS, raw, "text.format")
    kind = bytes(fields.pop("type", NOTHING))
    if kind == b'"json_schema"':
        return {"type": "json_schema", "json_schema": fields}
    return NOTHING if kind == b'"text"' else raw


class Conversation:
    """Makes messages of items: what the model said and called in one turn becomes one message."""

    def __init__(self, steps: Steps) -> None:
        self.messages: list[dict[str, Any]] = []
        self.ignored: dict[str, bool] = {}
        self._steps = steps
        self._turn: dict[str, Any] | None = None  # the assistant's message that is the last, or waits for outputs
        self._reasoning: dict[str, Any] = {}  # of the next one
        self._unanswered: dict[str, int] = {}  # call ids to the places of their items
        self._later: list[dict[str, Any]] = []  # messages that came before the outputs of all calls

    def add_input(self, items: str | list[msgspec.Raw]) -> None:
        if isinstance(items, str):
            self.messages.append({"role": "user", "content": items})
            return
        if len(items) > ITEMS_MAX:
            raise InvalidRequest(f"input: {len(items)} items were sent; at most {ITEMS_MAX} are allowed.")
        for index, raw in enumerate(items):
            self._steps.spend(ITEM_STEPS)
            self._add(f"input[{index}]", index, raw)
        if self._unanswered:
            call_id, index = next(iter(self._unanswered.items()))
            raise InvalidRequest(f"input[{index}]: the call '{call_id[:SHOWN_CHARS_MAX]}' has no output in `input`.")
        if not self.messages:
            raise InvalidRequest("input: must be a text, or an array with at least one message.")

    def _add(self, path: str, index: int, raw: msgspec.Raw) -> None:
        kind = decode_field(_KIND, raw, path).type
        if kind == "message":
            self._add_message(path, decode_field(_MESSAGE, raw, path))
        elif kind in ("function_call", "custom_tool_call"):
            self._add_call(path, index, kind, decode_field(_CALL, raw, path))
        elif kind in ("function_call_output", "custom_tool_call_output"):
            self._add_output(path, decode_field(_OUTPUT, raw, path))
        elif kind == "reasoning":
            self._add_reasoning(decode_field(_REASONED, raw, path))
        elif kind == "item_reference":
            raise InvalidRequest(f"{path}: refers to an item. {WHOLE_INPUT}")
        else:
            self.ignored[f"input.{kind}"] = True

    def _add_message(self, path: str, message: InputMessage) -> None:
        role, content = message.role, message.content
        if role not in PLAIN_ROLES:
            raise InvalidRequest(f"{path}.role: must be one of user, assistant, system and developer.")
        if role == "assistant":
            turn, text = self._open_turn(), content if isinstance(content, str) else self._join(path, content)
            turn["content"] = self._append(turn["content"] or "", text)
            return
        if isinstance(content, list):
            parts = [self._part(f"{path}.content[{number}]", part) for number, part in enumerate(content)]
            if role != "user" and any(part["type"] != "text" for part in parts):
                raise InvalidRequest(f"{path}.content: only messages of the role user have images, audio and files.")
            made: Any = parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts
        else:
            made = content
        self._reasoning = {}
        if self._unanswered:
            self._later.append({"role": role, "content": made})
        else:
            self._turn = None
            self.messages.append({"role": role, "content": made})

    def _open_turn(self, *, is_call: bool = False) -> dict[str, Any]:
        """The message of the assistant that this belongs to. A second text begins another, unless calls are open."""
        turn = self._turn
        if turn is None or not (is_call or turn["content"] is None or self._unanswered):
            self._turn = turn = {"role": "assistant", "content": None}
            self.messages.append(turn)
        for name, value in self._reasoning.items():
            turn[name] = self._append(turn[name], value) if name in turn else value
        self._reasoning = {}
        return turn

    def _add_call(self, path: str, index: int, kind: str, call: InputCall) -> None:
        name = fitting_name(path, call.name, call.namespace)
        made: dict[str, Any]
        if kind == "function_call":
            made = {"id": call.call_id, "type": "function", "function": {"name": name, "arguments": call.arguments}}
        else:
            made = {"id": call.call_id, "type": "custom", "custom": {"name": name, "input": call.input}}
        if call.extra_content != NOTHING:
            made["extra_content"] = call.extra_content
        self._open_turn(is_call=True).setdefault("tool_calls", []).append(made)
        self._unanswered[call.call_id] = index

    def _add_output(self, path: str, answer: InputOutput) -> None:
        if self._unanswered.pop(answer.call_id, None) is None:
            shown = answer.call_id[:SHOWN_CHARS_MAX]
            raise InvalidRequest(f"{path}.call_id: no call '{shown}' without an output is before it. {WHOLE_INPUT}")
        text, output = answer.output, answer.output
        if isinstance(output, list):
            parts = [self._part(f"{path}.output[{number}]", part) for number, part in enumerate(output)]
            text = "\n".join([part["text"] for part in parts if part["type"] == "text"])
            if media := [part for part in parts if part["type"] != "text"]:  # only user messages may have them
                self._later.append({"role": "user", "content": media})
        self.messages.append({"role": "tool", "tool_call_id": answer.call_id, "content": text})
        if not self._unanswered:
            self._turn = None
            self.messages += self._later
            self._later = []

    def _add_reasoning(self, item: InputReasoning) -> None:
        """Reasoning for the message that follows: as the upstream gave it, or else its text."""
        found = unwrap_reasoning(item.encrypted_content) if item.encrypted_content else None
        parts = item.content or item.summary
        self._steps.spend(len(parts))
        text = "".join([part.text or "" for part in parts])
        self._reasoning = found or ({"reasoning_content": text} if text else {})

    def _join(self, path: str, parts: list[InputPart]) -> str:
        self._steps.spend(len(parts))
        for number, part in enumerate(parts):
            if part.text is None and part.refusal is None:
                raise InvalidRequest(f"{path}.content[{number}]: must be of the type output_text, with a text.")
        return "".join([part.text or part.refusal or "" for part in parts])

    def _part(self, path: str, part: InputPart) -> dict[str, Any]:
        self._steps.spend(1)
        field = PARTS.get(part.type)
        if field is None:
            raise InvalidRequest(f"{path}.type: must be input_text, input_image, input_file or input_audio.")
        value = getattr(part, field)
        if value in (None, NOTHING):
            raise InvalidRequest(f"{path}.{field}: missing.{MISSING.get(field, '')}")
        if field == "file_data":
            return {"type": "file", "file": {"filename": part.filename, field: value}}
        if field == "image_url":
            value = {"url": value, **({"detail": part.detail} if part.detail in DETAILS else {})}
        return {"type": field, field: value}

    def _append(self, before: Grown, more: Grown) -> Grown:
        """A text or a list with what follows it; only that, if one is a text and the other a list."""
        self._steps.spend(len(before) // COPIED_CHARS)
        if isinstance(before, str):
            return before + more if isinstance(more, str) else more
        if isinstance(more, str):
            return more
        lists = [bytes(memoryview(one)[1:-1]).strip() for one in (before, more)]
        return msgspec.Raw(b"[%b]" % b",".join(filter(None, lists)))


class Tools:
    """Makes tools and choices of the chat's form, and knows the names of those that are changed."""

    def __init__(self, steps: Steps) -> None:
        self.names: dict[str, tuple[str, str]] = {}
        self.ignored: dict[str, bool] = {}
        self._sent = 0
        self._steps = steps

    def translate(self, given: ResponsesBody) -> dict[str, Any]:
        """The fields `tools` and `tool_choice`."""
        made, raw = self._tools("tools", given.tools or []), given.tool_choice
        fields: dict[str, Any] = {"tools": made} if made else {}
        if raw != NOTHING:
            is_readable = memoryview(raw)[0] == ord("{") and len(raw) <= CHOICE_BYTES_MAX
            choice = self._choice(raw) if is_readable else raw  # the chat refuses any other
            if choice == REQUIRED and self.ignored and not made:
                choice = None
            if choice is None:
                self.ignored["tool_choice"] = True
            else:
                fields["tool_choice"] = choice
        return fields | self.ignored

    def _tools(self, path: str, tools: list[InputTool], namespace: str = "") -> list[dict[str, Any]]:
        return [one for index, tool in enumerate(tools) for one in self._tool(f"{path}[{index}]", tool, namespace)]

    def _tool(self, path: str, tool: InputTool, namespace: str) -> list[dict[str, Any]]:
        self._steps.spend(TOOL_STEPS)
        self._sent += 1
        if self._sent > TOOLS_SENT_MAX:
            raise InvalidRequest(f"tools: at most {TOOLS_SENT_MAX:,} are allowed, with those of namespaces.")
        if tool.type == "namespace" and not namespace:
            check_name(f"{path}.name", tool.name)
            inner = decode_field(_TOOLS, tool.tools, f"{path}.tools") if tool.tools != NOTHING else []
            return self._tools(f"{path}.tools", inner, tool.name)
        name = fitting_name(path, tool.name, namespace)
        given: dict[str, Any] = {"description": tool.description, "parameters": tool.parameters, "strict": tool.strict}
        if tool.type == "custom":
            given = {"description": tool.description, "format": _custom_format(tool.format)}
        elif tool.type != "function":
            self.ignored[f"tools.{tool.type}"] = True
            return []
        if name != tool.name:
            self.names[name] = namespace, tool.name
        set_fields = {field: raw for field, raw in given.items() if raw != NOTHING}
        return [{"type": tool.type, tool.type: {"name": name, **set_fields}}]

    def _choice(self, raw: msgspec.Raw) -> dict[str, Any] | None:
        """A choice that names tools; None if they are left out."""
        choice = decode_field(_TOOL, raw, "tool_choice")
        if choice.type != "allowed_tools":
            return _named("tool_choice", choice)
        tools = decode_field(_TOOLS, choice.tools, "tool_choice.tools") if choice.tools != NOTHING else []
        self._steps.spend(TOOL_STEPS * len(tools))
        given = [_named(f"tool_choice.tools[{index}]", tool) for index, tool in enumerate(tools)]
        named = [one for one in given if one]
        return {"type": choice.type, choice.type: {"mode": choice.mode, "tools": named}} if named or not tools else None


def _named(path: str, tool: InputTool) -> dict[str, Any] | None:
    if tool.type not in ("function", "custom"):
        return None
    return {"type": tool.type, tool.type: {"name": fitting_name(path, tool.name, tool.namespace)}}


def _custom_format(raw: msgspec.Raw) -> msgspec.Raw | dict[str, Any]:
    """A grammar is an object of its own in a chat."""
    fields = RAW_FIELDS.decode(raw) if memoryview(raw)[0] == ord("{") else {}
    if bytes(fields.get("type", NOTHING)) != b'"grammar"' or "grammar" in fields:
        return raw
    return {"type": fields.pop("type"), "grammar": fields}


def wrap_reasoning(fields: dict[str, Any]) -> str:
    """Reasoning in a form that clients send back unread: the fields of the upstream. It is encoded, not secret."""
    return base64.b64encode(_ENCODE(fields)).decode()


def unwrap_reasoning(wrapped: str) -> dict[str, Grown] | None:
    """The fields again, lists as raw JSON: they may be long. None if another service has wrapped them."""
    try:
        fields = RAW_FIELDS.decode(base64.b64decode(wrapped, validate=True))
        if not fields.keys() <= REASONING:
            return None
        return {name: _grown(raw) for name, raw in fields.items() if memoryview(raw)[0] in b'"['}
    except (ValueError, RecursionError):
        return None


def _grown(raw: msgspec.Raw) -> Grown:
    return raw if memoryview(raw)[0] == ord("[") else _STRING.decode(raw)
