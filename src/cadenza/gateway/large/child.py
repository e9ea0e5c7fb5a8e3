"""The child process: it translates, parses or counts one body after the other. Only bodies.py starts it.

The translators are those of a part, which has a program of its own for them.

Beyond its memory limit it refuses the body, or dies. The number of fields of each message and each tool is bounded,
because some upstreams want them rewritten field by field, which the event loop does.
"""

import gc
import math
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from cadenza.children.confine import allow_cpu, confine, enter_sandbox, read_limits, serve_tasks
from cadenza.core.chat import ChatRequest, UserQuestion, find_user_question
from cadenza.core.content import Content
from cadenza.core.errors import InvalidRequest
from cadenza.core.message_json import RAW_FIELDS, RAW_ITEMS
from cadenza.core.tokens import Tokenizer
from cadenza.gateway.large.tasks import TASKS, Counted, InvalidBody, Parsed, Reply, Span, Task, Translate
from cadenza.gateway.tools import NOTHING
from cadenza.gateway.validate import ChatBody, check_body, check_message_count, decode_body, decode_field

QUESTION_CHARS = 4096
MODEL_CHARS_MAX = 256  # no class name is longer
TOO_LARGE = "The body takes too much memory to read: it has too many fields, messages or parts."

FIELDS_MAX = 256  # of a message, a tool, its function, or a call
SMALL_BYTES = 16 * 1024  # it cannot have many fields


class Anything(Content, msgspec.Struct):
    """Any object. It takes a few bytes: of millions, the raw JSON of each would take all memory of the child."""


class NumberedMessages(Content, msgspec.Struct):
    """How many messages a body has."""

    messages: list[Anything] | None = None


_NUMBERED = msgspec.json.Decoder(NumberedMessages)


def main(translators: Mapping[str, Translate]) -> None:
    limits, tokenizer = read_limits(), Tokenizer()
    confine(limits)
    gc.disable()
    gc.freeze()  # the collection after each task looks only at what the task made

    is_sandboxed = False

    def serve(head: bytearray, body: bytearray) -> bytes:
        nonlocal is_sandboxed
        allow_cpu(limits.cpu_s)
        task = TASKS.decode(head)
        if not is_sandboxed:
            if task.kind == "count":
                tokenizer.load()
            enter_sandbox()
            is_sandboxed = True
        return msgspec.msgpack.encode(perform(task, body, tokenizer, translators))

    serve_tasks(serve, gc.collect)


def perform(task: Task, body: bytearray, tokenizer: Tokenizer, translators: Mapping[str, Translate]) -> Reply:
    if task.kind == "translate":
        return translate(body, translators[task.protocol])
    return parse(body) if task.kind == "parse" else count(body, task.character, tokenizer)


def translate(body: bytearray, translator: Translate) -> Reply:
    try:
        return translator(body, math.inf)
    except InvalidRequest as error:
        return InvalidBody(error.message)
    except MemoryError:
        return InvalidBody(TOO_LARGE)


def parse(body: bytearray) -> Reply:
    try:
        check_message_count(len(decode_field(_NUMBERED, body).messages or ()))
        decoded, extra = decode_body(body)
        chat = check_body(decoded, extra)
        check_field_numbers(decoded)
        return describe(body, decoded, chat)
    except InvalidRequest as error:
        return InvalidBody(error.message)
    except MemoryError:
        return InvalidBody(TOO_LARGE)


def count(body: bytearray, character: str, tokenizer: Tokenizer) -> Reply:
    """Count what is sent of a body that was parsed before."""
    try:
        return Counted(tokenizer.count_prompt([character, *check_body(*decode_body(body)).counted_texts()]))
    except MemoryError:
        return InvalidBody(TOO_LARGE)


def _texts(chat: ChatRequest) -> list[str]:
    assert isinstance(chat.texts, list), "only the service has large texts"
    return chat.texts


def _question(chat: ChatRequest) -> UserQuestion | None:
    question = find_user_question(chat.messages, _texts(chat))
    return question and msgspec.structs.replace(question, texts=tuple(map(_shortened, question.texts)))


def _shortened(text: str) -> str:
    """The beginning and the end of a long text: that is where the question is."""
    return text if len(text) <= 2 * QUESTION_CHARS else text[:QUESTION_CHARS] + "\n" + text[-QUESTION_CHARS:]


def describe(body: bytearray, decoded: ChatBody, chat: ChatRequest) -> Parsed:
    spans, sent = SpanFinder(body), decoded.messages or []
    messages = [
        span if forwarded == raw else spans.add(forwarded)
        for forwarded, raw, span in zip(chat.messages, sent, spans.find_items(sent), strict=True)
    ]
    return Parsed(
        model=chat.model and chat.model[:MODEL_CHARS_MAX],
        messages=messages,
        stream=chat.stream,
        max_tokens=chat.max_tokens,
        sampling={name: spans.find(raw) for name, raw in chat.sampling.items()},
        tools={name: spans.find(raw) for name, raw in chat.tools.items()},
        leading_system=chat.leading_system,
        system=spans.add(chat.system),
        needs=chat.needs,
        question=_question(chat),
        files=[(one.message, one.start, one.end, one.name, spans.find(one.data)) for one in chat.files],
        media=chat.media,
        text_chars=chat.least_chars,
        extra_fields={name: spans.find(raw) for name, raw in chat.extra.items()},
        extra=memoryview(spans.extra),
        wants_cost=chat.wants_cost,
    )


def check_field_numbers(body: ChatBody) -> None:
    for index, message in enumerate(body.messages or ()):
        fields = _check(f"messages[{index}]", message)
        for number, call in enumerate(_items(fields.get("tool_calls", NOTHING))):
            _check(f"messages[{index}].tool_calls[{number}]", call)
    for index, tool in enumerate(_items(body.tools)):
        fields = _check(f"tools[{index}]", tool)
        if "function" in fields:
            _check(f"tools[{index}].function", fields["function"])


def _items(array: msgspec.Raw) -> list[msgspec.Raw]:
    return RAW_ITEMS.decode(array) if array != NOTHING else []


def _check(path: str, raw: msgspec.Raw) -> dict[str, msgspec.Raw]:
    """The fields of an object; none if it is too small to have many."""
    if memoryview(raw).nbytes <= SMALL_BYTES or memoryview(raw)[0] != ord("{"):
        return {}
    fields = RAW_FIELDS.decode(raw)
    if len(fields) > FIELDS_MAX:
        raise InvalidRequest(f"{path}: has {len(fields)} fields; at most {FIELDS_MAX} are allowed.")
    return fields


class SpanFinder:
    """Finds raw JSON in the body that it came from. What is not in the body is collected in `extra`.

    Any place with the same bytes will do, so a repeated field does no harm.
    """

    def __init__(self, body: bytearray) -> None:
        self.extra = bytearray()
        self._body = body

    def find(self, raw: msgspec.Raw) -> Span:
        start = self._body.find(raw)
        assert start >= 0, "a raw field is a part of its body"
        return start, start + memoryview(raw).nbytes

    def find_items(self, items: Iterable[msgspec.Raw]) -> Iterator[Span]:
        """The spans of the items of one array, in their order: after the first, little is between two of them."""
        end = 0
        for item in items:
            start = self._body.find(item, end)
            end = start + memoryview(item).nbytes
            yield start, end

    def add(self, data: bytes | memoryview | msgspec.Raw) -> Span:
        start = len(self._body) + len(self.extra)
        self.extra += memoryview(data)
        return start, len(self._body) + len(self.extra)


if __name__ == "__main__":
    main({})
