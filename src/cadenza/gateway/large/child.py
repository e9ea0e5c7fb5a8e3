"""The child process: it parses or counts one body after the other. Only bodies.py starts it.

Beyond its limit of memory it refuses the body, or dies.
"""

import gc

import msgspec

from cadenza.children.confine import allow_cpu, confine, enter_sandbox, read_limits, serve_tasks
from cadenza.core.chat import ChatRequest, UserQuestion, find_user_question
from cadenza.core.errors import InvalidRequest
from cadenza.core.sent import sent_bytes
from cadenza.core.tokens import Tokenizer
from cadenza.gateway.large.fields import check_field_numbers
from cadenza.gateway.large.messages import TASKS, Counted, FileSpan, Parsed, Refused, Reply
from cadenza.gateway.large.spans import SpanFinder
from cadenza.gateway.validate import RAW_ITEMS, Body, check_body, decode_body

QUESTION_CHARS = 4096
ESCAPE_BYTES = 6
MODEL_CHARS_MAX = 256  # no class has so long a name
TOO_LARGE = "The body takes too much memory to read: it has too many fields, messages or parts."


def main() -> None:
    limits, tokenizer = read_limits(), Tokenizer()
    confine(limits)
    gc.disable()
    gc.freeze()  # the collection after each task looks only at what the task made

    is_door_open = True

    def serve(head: bytearray, body: bytearray) -> bytes:
        nonlocal is_door_open
        allow_cpu(limits.cpu_s)
        task = TASKS.decode(head)
        if is_door_open:
            if task.kind == "count":
                tokenizer.load()
            enter_sandbox()
            is_door_open = False
        return msgspec.msgpack.encode(parse(body) if task.kind == "parse" else count(body, task.character, tokenizer))

    serve_tasks(serve, gc.collect)


def parse(body: bytearray) -> Reply:
    try:
        decoded, extra = decode_body(body)
        chat = check_body(decoded, extra)
        check_field_numbers(decoded)
        return describe(body, decoded, chat)
    except InvalidRequest as error:
        return Refused(error.message)
    except MemoryError:
        return Refused(TOO_LARGE)


def count(body: bytearray, character: str, tokenizer: Tokenizer) -> Reply:
    """Count what is sent of a body that was parsed before."""
    try:
        tokens = tokenizer.count_prompt(check_body(*decode_body(body)).counted_texts())
        return Counted(tokens, tokenizer.count_prompt([character]))
    except MemoryError:
        return Refused(TOO_LARGE)


def _texts(chat: ChatRequest) -> list[str]:
    assert isinstance(chat.texts, list), "only the service has large texts"
    return chat.texts


def _least_chars(chat: ChatRequest) -> int:
    """The fewest characters that the counted texts can have: an escape makes six bytes of one."""
    json_bytes = sent_bytes(chat.messages, chat.fields) - chat.media.size_bytes
    return max(sum(map(len, _texts(chat))), json_bytes // ESCAPE_BYTES)


def _question(chat: ChatRequest) -> UserQuestion | None:
    question = find_user_question(chat.messages, _texts(chat))
    return question and msgspec.structs.replace(question, texts=tuple(map(_shortened, question.texts)))


def _shortened(text: str) -> str:
    """The beginning and the end of a long text: that is where the question is."""
    return text if len(text) <= 2 * QUESTION_CHARS else text[:QUESTION_CHARS] + "\n" + text[-QUESTION_CHARS:]


def describe(body: bytearray, decoded: Body, chat: ChatRequest) -> Parsed:
    spans, sent = SpanFinder(body), RAW_ITEMS.decode(decoded.messages)
    messages = [
        span if forwarded == raw else spans.add(forwarded)
        for forwarded, raw, span in zip(chat.messages, sent, spans.find_items(decoded.messages, sent), strict=True)
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
        files=[FileSpan(one.message, one.start, one.end, one.name, spans.find(one.data)) for one in chat.files],
        media=chat.media,
        text_chars=_least_chars(chat),
        extra_fields={name: spans.find(raw) for name, raw in chat.extra.items()},
        extra=memoryview(spans.extra),
    )


if __name__ == "__main__":
    main()
