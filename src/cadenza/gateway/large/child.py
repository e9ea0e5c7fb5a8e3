"""The child process: it parses or counts one body after the other. Only process.py starts it.

It has no provider keys, no listening socket and no files, writes nothing, and leaves no core dump. Memory and CPU time
are limited by the system; beyond a limit it refuses the body, or dies. It ends when its socket closes, and with its
parent.
"""

import gc
import os
import resource
import signal
import socket
import sys
import time

import msgspec

from cadenza.core.errors import InvalidRequest
from cadenza.core.tokens import Tokenizer
from cadenza.gateway.large.fields import check_field_numbers
from cadenza.gateway.large.messages import REPLY, TASK, Counted, Kind, Limits, Parsed, Refused, Reply
from cadenza.gateway.large.spans import SpanFinder
from cadenza.gateway.validate import RAW_ITEMS, Body, ChatRequest, check_body, decode_body
from cadenza.process import end_with_parent, protect_memory

MODEL_CHARS_MAX = 256  # no class has so long a name
NICENESS = 5  # where cores are scarce, small requests go first
TOO_LARGE = "The body takes too much memory to read: it has too many fields, messages or parts."


def main() -> None:
    parent_pid, limits = int(sys.argv[1]), msgspec.json.decode(sys.argv[2], type=Limits)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal reaches the child too; the parent handles it
    confine(parent_pid, limits)
    tokenizer = Tokenizer()
    gc.disable()
    gc.freeze()  # the collection after each task looks only at what the task made
    with socket.socket(fileno=0) as parent:
        while head := receive(parent, TASK.size):
            kind, character_bytes, body_bytes = TASK.unpack(head)
            character = receive(parent, character_bytes).decode()
            body = receive(parent, body_bytes)
            allow_cpu(limits.cpu_s)
            reply = msgspec.msgpack.encode(parse(body) if kind == Kind.PARSE else count(body, character, tokenizer))
            del body
            parent.sendall(REPLY.pack(len(reply)) + reply)
            del reply
            gc.collect()


def confine(parent_pid: int, limits: Limits) -> None:
    protect_memory()
    end_with_parent()
    if os.getppid() != parent_pid:  # it ended before
        os._exit(0)
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    memory_bytes = limits.memory_bytes if most == resource.RLIM_INFINITY else min(limits.memory_bytes, most)
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    os.nice(NICENESS)


def allow_cpu(seconds: int) -> None:
    """Beyond this, the system ends the process with SIGXCPU."""
    limit_s = int(time.process_time()) + 1 + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, resource.RLIM_INFINITY))


def parse(body: bytearray) -> Reply:
    try:
        decoded = decode_body(body)
        chat = check_body(decoded)
        check_field_numbers(decoded)
        return describe(body, decoded, chat)
    except InvalidRequest as error:
        return Refused(error.message)
    except MemoryError:
        return Refused(TOO_LARGE)


def count(body: bytearray, character: str, tokenizer: Tokenizer) -> Reply:
    """Count the texts of a body that was parsed before."""
    try:
        tokens = tokenizer.count_prompt(_texts(check_body(decode_body(body))))
        return Counted(tokens, tokenizer.count_prompt([character]))
    except MemoryError:
        return Refused(TOO_LARGE)


def _texts(chat: ChatRequest) -> list[str]:
    assert isinstance(chat.texts, list), "only the service has large texts"
    return chat.texts


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
        has_custom_tools=chat.has_custom_tools,
        text_chars=sum(map(len, _texts(chat))),
        extra=memoryview(spans.extra),
    )


def receive(parent: socket.socket, size_bytes: int) -> bytearray:
    """So many bytes; none once the parent has closed its end."""
    data = bytearray(size_bytes)
    view, received = memoryview(data), 0
    while received < size_bytes:
        count = parent.recv_into(view[received:])
        if not count:
            return bytearray()
        received += count
    return data


if __name__ == "__main__":
    main()
