"""Translates the body of Anthropic's Messages API to that of a chat request, which is then read like any other. Pure.

Only what the two write differently is looked at here; the reader of chat requests checks the rest. What has no
counterpart is dropped and named in a header: an unknown field goes on under its own name, a tool that Anthropic's
servers would run as `tools.TYPE`, a block of one as `messages.TYPE`.

In a chat, results of calls are messages of their own, right after the calls, and have no images. So the results of a
turn go first, and everything else that the user sent follows in one message, with the images of the results.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from cadenza.core.content import Content
from cadenza.core.errors import InvalidRequest
from cadenza.core.message_json import RAW_FIELDS
from cadenza.core.records import OUTPUT_TOKENS_MAX
from cadenza.gateway.large.tasks import Translated
from cadenza.gateway.large.weight import Steps
from cadenza.gateway.messages import is_truthy
from cadenza.gateway.tools import NOTHING
from cadenza.gateway.validate import check_utf8, decode_field
from cadenza.parts.protocols.translation import (
    NAME_CHARS_MAX,
    TOOL_STEPS,
    TOOLS_SENT_MAX,
    Kept,
    fitting_name,
)

EFFORTS = {"xhigh": "high", "max": "high"}  # what no chat model knows
CHOICES = {"auto": "auto", "any": "required", "none": "none"}
ROLES = ("user", "assistant", "system")
GAP = "\n\n"  # between texts that become one
FAILED = "Error: "  # before the result of a call that failed
NO_THREADS = "thread: No threads are stored here: send the whole conversation as `messages`, without `thread`."
MOVED = "(The {kind} of this result is in the next message.)"
FOUND = "The tool {name} can be called now."
Message = dict[str, Any]  # of a chat
Part = dict[str, Any]


class DataSource(Content, msgspec.Struct):
    """Where the data of an image or a document is."""

    type: str
    media_type: str | None = None
    data: str | None = None
    url: str | None = None


class ContentBlock(Content, msgspec.Struct):
    """The fields of a block that are looked at, of any type."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: msgspec.Raw = NOTHING
    extra_content: msgspec.Raw = NOTHING  # of our own replies: what the upstream wants back with a call
    tool_use_id: str | None = None
    is_error: bool | None = None
    content: msgspec.Raw = NOTHING
    source: msgspec.Raw = NOTHING
    title: str | None = None
    tool_name: str | None = None
    tool: msgspec.Raw = NOTHING


class SchemaTool(Content, msgspec.Struct):
    """A tool. One with a type of its own would be run by Anthropic's servers, or has a schema that they know."""

    type: str | None = None
    name: str | None = None
    description: str | None = None
    input_schema: msgspec.Raw = NOTHING
    strict: bool | None = None


class Typed(Content, msgspec.Struct):
    """Which tools the model may or must call; whether thinking is shown; or the form of the answer, with its schema."""

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None
    schema: msgspec.Raw = NOTHING


class OutputConfig(Content, msgspec.Struct):
    """How much the model thinks, and the form of its answer."""

    effort: str | None = None
    format: Typed | None = None


class ChangedTool(Content, msgspec.Struct):
    """A tool that is offered from a message on, or no longer: one that was sent, by its name, or a new one."""

    name: str | None = None
    definition: SchemaTool | None = None


class MessageOfBlocks(Content, msgspec.Struct):
    """A message as it was sent."""

    role: str
    content: str | list[ContentBlock] | None = None
    output_config: OutputConfig | None = None  # of a system message, which needs no content then
    clear_at: str | None = None


class MessagesBody(Content, msgspec.Struct):
    """The fields that are written differently, and whether thinking is shown."""

    messages: list[MessageOfBlocks] | None = None
    system: str | list[ContentBlock] | None = None
    max_tokens: int | float | None = None
    stop_sequences: list[str] | None = None
    tools: list[SchemaTool] | None = None
    tool_choice: Typed | None = None
    output_config: OutputConfig | None = None
    thinking: Typed | None = None


_BODY, _SOURCE = msgspec.json.Decoder(MessagesBody), msgspec.json.Decoder(DataSource)
_CHANGED_TOOL = msgspec.json.Decoder(ChangedTool)
_TEXTS = msgspec.json.Decoder(str | list[ContentBlock] | None)
TRANSLATED = frozenset(MessagesBody.__struct_fields__) - {"thinking"}  # which a route may pass on


def translate(body: bytes | bytearray, steps_max: float, *, needs_limit: bool = True) -> Translated:
    """The chat request. Its reply shows how the model thinks if that was asked for, or with tools.

    Some models want their thinking back with the results of tools. A request that is only counted needs no limit.
    """
    check_utf8(body)
    given, fields, ignored = decode_field(_BODY, body), RAW_FIELDS.decode(body), dict[str, bool]()
    if is_truthy(fields.pop("thread", None)):  # the next request would have only what is new
        raise InvalidRequest(NO_THREADS)
    messages, limit = given.messages or [], given.max_tokens
    steps = Steps(steps_max)
    contents = [given.system, given.stop_sequences, *[one.content for one in messages]]
    steps.spend(len(messages) + sum([len(content) for content in contents if isinstance(content, list)]))
    chat: dict[str, Any] = {name: raw for name, raw in fields.items() if name not in TRANSLATED}
    leading = [{"role": "system", "content": _texts("system", given.system)}] if given.system else []
    changes = SystemChanges()
    chat["messages"] = leading + _to_chat(messages, ignored, changes, steps) if messages else []
    tools = changes.apply(given.tools or [])
    steps.spend(TOOL_STEPS * len(tools))
    chat |= _tool_fields(tools, given.tool_choice, ignored)
    chat |= _output_fields(given.output_config or OutputConfig(), changes.effort)
    if limit is not None:
        chat["max_tokens"] = min(limit, OUTPUT_TOKENS_MAX)  # fitted to the route later
    elif needs_limit:
        raise InvalidRequest("max_tokens: missing. Say how many tokens the answer may have at most.")
    if given.stop_sequences:
        chat["stop"] = given.stop_sequences
    shows_thinking = "tools" in chat or (given.thinking is not None and given.thinking.type != "disabled")
    long = [one.name for one in tools if one.name and len(one.name) > NAME_CHARS_MAX]
    kept = Kept(names={fitting_name("tools", name): ("", name) for name in long}, shows_thinking=shows_thinking)
    return Translated(memoryview(msgspec.json.encode(ignored | chat)), msgspec.json.encode(kept))


class SystemChanges:
    """What system messages change from their place on: which tools are offered, and how much the model thinks."""

    def __init__(self) -> None:
        self.effort: str | None = None
        self._added: dict[str | None, SchemaTool] = {}
        self._removed: set[str | None] = set()

    def read(self, path: str, message: MessageOfBlocks) -> str:
        """The text of a system message."""
        if message.output_config and message.output_config.effort:
            self.effort = message.output_config.effort
        if isinstance(message.content, str):
            return message.content
        texts = list[ContentBlock]()
        for number, block in enumerate(message.content or ()):
            if block.type not in ("tool_addition", "tool_removal"):
                texts.append(block)
                continue
            tool = decode_field(_CHANGED_TOOL, block.tool, f"{path}.content[{number}].tool")
            name = tool.definition.name if tool.definition else tool.name
            if block.type == "tool_removal":
                self._removed.add(name)
                continue
            self._removed.discard(name)
            if tool.definition:
                self._added[name] = tool.definition
        return _texts(f"{path}.content", texts)

    def apply(self, tools: list[SchemaTool]) -> list[SchemaTool]:
        kept = [one for one in tools if one.name not in self._added]
        return [one for one in [*kept, *self._added.values()] if one.name not in self._removed]


def _to_chat(
    sent: Sequence[MessageOfBlocks], ignored: dict[str, bool], changes: SystemChanges, steps: Steps
) -> list[Message]:
    messages, later = list[Message](), list[Message]()  # what follows the results of this turn
    last_user = max((index for index, message in enumerate(sent) if message.role == "user"), default=0)
    for index, message in enumerate(sent):
        path, content = f"messages[{index}]", message.content
        if message.role not in ROLES:
            raise InvalidRequest(f"{path}.role: must be one of {', '.join(ROLES)}.")
        if message.role == "system":
            text = changes.read(path, message)
            if text and not (message.clear_at == "next_user_message" and index < last_user):
                later.append({"role": "system", "content": text})
        elif content is None:
            raise InvalidRequest(f"{path}.content: missing.")
        elif message.role == "assistant":
            messages += [*later, _assistant(path, content, ignored)]
            later = []
        elif isinstance(content, str):
            later.append({"role": "user", "content": content})
        else:
            results, parts = _split(f"{path}.content", content, steps)
            messages += results
            if parts or not results:
                is_text = all(part["type"] == "text" for part in parts)  # as one, which every model takes
                later.append(
                    {"role": "user", "content": GAP.join([one["text"] for one in parts]) if is_text else parts}
                )
    return messages + later


def _assistant(path: str, content: str | list[ContentBlock], ignored: dict[str, bool]) -> Message:
    """Its texts are joined as they were: our own replies come back unchanged."""
    if isinstance(content, str):
        return {"role": "assistant", "content": content}
    text, thinking, calls = "", "", list[dict[str, Any]]()
    for number, block in enumerate(content):
        if block.type == "text":
            text += block.text or ""
        elif block.type == "thinking":
            thinking += block.thinking or ""
        elif block.type == "tool_use":
            calls.append(_call(f"{path}.content[{number}]", block))
        elif block.type != "redacted_thinking":
            ignored[f"messages.{block.type}"] = True
    message: Message = {"role": "assistant", "content": text or (None if calls else "")}
    if thinking:
        message["reasoning_content"] = thinking
    if calls:
        message["tool_calls"] = calls
    return message


def _call(path: str, block: ContentBlock) -> dict[str, Any]:
    if not (block.id and block.name):
        raise InvalidRequest(f"{path}: a tool_use block needs an `id` and a `name`.")
    arguments = "{}" if block.input == NOTHING else bytes(block.input).decode()
    call = {
        "id": block.id,
        "type": "function",
        "function": {"name": fitting_name(path, block.name), "arguments": arguments},
    }
    return call if block.extra_content == NOTHING else call | {"extra_content": block.extra_content}


def _split(path: str, blocks: list[ContentBlock], steps: Steps) -> tuple[list[Message], list[Part]]:
    """The results of calls, and everything else."""
    results, parts = list[Message](), list[Part]()
    for number, block in enumerate(blocks):
        if block.type == "tool_result":
            result, moved = _result(f"{path}[{number}]", block, steps)
            results.append(result)
            parts += moved
        else:
            parts.append(_part(f"{path}[{number}]", block))
    return results, parts


def _result(path: str, block: ContentBlock, steps: Steps) -> tuple[Message, list[Part]]:
    """The message of one result, and its images and documents, which move into the next message."""
    content = decode_field(_TEXTS, block.content, f"{path}.content") or ""
    steps.spend(0 if isinstance(content, str) else len(content))
    moved, texts = list[Part](), [content] if isinstance(content, str) else []
    for number, one in enumerate(content if isinstance(content, list) else ()):
        if one.type == "tool_reference":
            texts.append(FOUND.format(name=one.tool_name))
            continue
        part = _part(f"{path}.content[{number}]", one)
        if part["type"] == "text":
            texts.append(part["text"])
        else:
            moved.append(part)
            texts.append(MOVED.format(kind=one.type))
    text = GAP.join(texts)
    result = {"role": "tool", "tool_call_id": block.tool_use_id, "content": FAILED + text if block.is_error else text}
    return result, moved


def _part(path: str, block: ContentBlock) -> Part:
    """A text, an image, or a document: a PDF is a file, and one of text is text."""
    if block.type == "text":
        if block.text is None:
            raise InvalidRequest(f"{path}.text: missing.")
        return {"type": "text", "text": block.text}
    if block.type not in ("image", "document"):
        raise InvalidRequest(f"{path}.type: here a block must be a text, an image, a document or a tool_result.")
    source = decode_field(_SOURCE, block.source, f"{path}.source")
    kind, data = (block.type, source.type), source.data
    if kind == ("image", "url") and source.url:
        return {"type": "image_url", "image_url": {"url": source.url}}
    if kind == ("document", "text") and data is not None:
        return {"type": "text", "text": f"{block.title}{GAP}{data}" if block.title else data}
    if source.type != "base64" or data is None or not source.media_type:
        takes = "base64 or url" if block.type == "image" else "base64 or text"
        raise InvalidRequest(f"{path}.source: must be of the type {takes}, with the data. No files are kept here.")
    url = f"data:{source.media_type};base64,{data}"
    if block.type == "image":
        return {"type": "image_url", "image_url": {"url": url}}
    return {"type": "file", "file": {"filename": block.title or "document.pdf", "file_data": url}}


def _texts(path: str, content: str | list[ContentBlock]) -> str:
    """The text of what may have nothing but text."""
    if isinstance(content, str):
        return content
    if any(block.type != "text" or block.text is None for block in content):
        raise InvalidRequest(f"{path}: only blocks of text are supported here.")
    return GAP.join([block.text or "" for block in content])


def _tool_fields(sent: list[SchemaTool], choice: Typed | None, ignored: dict[str, bool]) -> dict[str, Any]:
    if len(sent) > TOOLS_SENT_MAX:
        raise InvalidRequest(f"tools: {len(sent)} were sent; at most {TOOLS_SENT_MAX:,} are allowed.")
    tools = [(index, one) for index, one in enumerate(sent) if one.type in (None, "custom")]
    dropped = [one for one in sent if one.type not in (None, "custom")]
    ignored |= {f"tools.{one.type}": True for one in dropped}
    chat: dict[str, Any] = {"tools": [_tool(f"tools[{index}]", one) for index, one in tools]} if tools else {}
    is_lost = bool(dropped) and choice is not None and (not tools or choice.name in {one.name for one in dropped})
    if choice is None or is_lost:
        return chat
    if choice.type == "tool":
        chat["tool_choice"] = {
            "type": "function",
            "function": {"name": choice.name and fitting_name("tool_choice", choice.name)},
        }
    elif choice.type in CHOICES:
        chat["tool_choice"] = CHOICES[choice.type]
    else:
        raise InvalidRequest("tool_choice.type: must be auto, any, tool or none.")
    if choice.disable_parallel_tool_use is not None:
        chat["parallel_tool_calls"] = not choice.disable_parallel_tool_use
    return chat


def _tool(path: str, tool: SchemaTool) -> dict[str, Any]:
    name = tool.name and fitting_name(path, tool.name)
    given = {"name": name, "description": tool.description, "parameters": tool.input_schema, "strict": tool.strict}
    return {"type": "function", "function": {name: one for name, one in given.items() if one not in (None, NOTHING)}}


def _output_fields(output: OutputConfig, changed_effort: str | None) -> dict[str, Any]:
    chat, wanted = dict[str, Any](), output.format
    if effort := changed_effort or output.effort:
        chat["reasoning_effort"] = EFFORTS.get(effort, effort)
    if wanted and wanted.type == "json_schema":
        schema = {"name": "answer", "schema": wanted.schema, "strict": True}
        chat["response_format"] = {"type": "json_schema", "json_schema": schema}
    return chat
