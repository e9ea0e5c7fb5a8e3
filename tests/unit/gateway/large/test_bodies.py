"""Large bodies: a child process makes of them what the service itself would, and its failures stay its own."""

import asyncio
import functools
import io
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cadenza.children.confine import ChildLimits
from cadenza.core.chat import ChatRequest, LargeTexts, find_user_question
from cadenza.core.errors import InvalidRequest, RateLimited
from cadenza.core.tokens import least_tokens
from cadenza.gateway.large.bodies import LargeBodies, LargeLimits
from cadenza.gateway.large.child import FIELDS_MAX
from cadenza.gateway.messages import CALLS_MAX, PARTS_MAX
from cadenza.gateway.validate import MESSAGES_MAX, parse_chat
from cadenza.observe import Observer, make_log
from tests import processes
from tests.processes import command_of
from tests.unit.gateway.prompts import TOKENIZER

MIB = 1024 * 1024
ACCOUNT = "account"
LONG = "Every word counts. " * 5_000
USER = {"role": "user", "content": LONG}
HI = {"role": "user", "content": "hi"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
MANY_KEYS = b'{"messages":[{"role":"developer","content":"a",%b}]}'

ALLOWED = {
    "type": "allowed_tools",
    "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "leap"}}]},
}
VALID: dict[str, dict[str, Any]] = {
    "one long message": {"messages": [USER]},
    "the same message twice": {"messages": [USER, USER]},
    "sampling fields": {"messages": [USER], "temperature": 0.5, "stop": ["a", "é"], "seed": 7, "user": "x"},
    "leading system messages": {
        "messages": [{"role": "system", "content": 'Say "é".\n'}, {"role": "developer", "content": LONG}, HI]
    },
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": LONG}] * 2}]},
    "tools": {"messages": [USER], "tools": [TOOL], "tool_choice": "auto", "parallel_tool_calls": True},
    "tool calls": {
        "messages": [
            USER,
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "call_1", "content": LONG},
        ],
        "tools": [TOOL, {"type": "custom", "custom": {"name": "say"}}],
        "model": "forte",
        "stream": True,
        "max_tokens": 9,
    },
}
FILE = {"type": "file", "file": {"filename": "a.txt", "file_data": "QUJD" * 30_000}}
VALID |= {
    "an assistant that only reasoned": {
        "messages": [HI, {"role": "assistant", "content": None, "reasoning_content": LONG}, HI]
    },
    "an assistant that spoke": {"messages": [USER, {"role": "assistant", "content": None, "audio": {"id": "a"}}, HI]},
    "files": {"messages": [HI, {"name": "hi", "role": "user", "content": [FILE, {"type": "text", "text": "?"}, FILE]}]},
    "files with tools": {"messages": [{"role": "user", "content": [FILE]}], "tools": [TOOL]},
    "images and audio": {
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "QUJD" * 30_000}},
                    {"type": "input_audio", "input_audio": {"data": "QUJD", "format": "wav"}},
                ],
            }
        ]
    },
}
INVALID: dict[str, dict[str, Any]] = {
    "too many files": {"messages": [{"role": "user", "content": [FILE] * 21}]},
    "a file by its id": {"messages": [USER, {"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]}]},
    "too many messages": {"messages": [HI] * (MESSAGES_MAX + 1)},
    "too many parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * (PARTS_MAX + 1)}]},
    "too many calls": {
        "messages": [HI, {"role": "assistant", "tool_calls": [CALL | {"id": str(n)} for n in range(CALLS_MAX + 1)]}]
    },
    "a tool_choice that is too large": {"messages": [HI], "tool_choice": {"type": LONG}},
    "a sampling field that is too large": {"messages": [HI], "stop": LONG},
    "no messages": {"messages": [], "x": LONG},
    "a bad message": {"messages": [USER, {"role": "nobody", "content": ""}]},
    "an assistant without content": {"messages": [USER, {"role": "assistant", "content": None}]},
    "a choice of an unknown type": {"messages": [USER], "tools": [TOOL], "tool_choice": {"type": "auto"}},
    "an allowed tool that is not defined": {"messages": [USER], "tools": [TOOL], "tool_choice": ALLOWED},
}


def children() -> set[int]:
    """The child processes that parse or count; a test process may have others."""
    return {pid for pid in processes.children(os.getpid()) if b"cadenza.gateway.large.child" in command_of(pid)}


@asynccontextmanager
async def running(limits: LargeLimits | None = None) -> AsyncIterator[LargeBodies]:
    large_bodies = LargeBodies(Observer(make_log(io.StringIO())), limits=limits)
    try:
        yield large_bodies
    finally:
        await large_bodies.stop()


@pytest.fixture
async def large_bodies() -> AsyncIterator[LargeBodies]:
    async with running() as large_bodies:
        yield large_bodies


def shown(chat: ChatRequest) -> dict[str, Any]:
    """Everything but the texts and what only their count needs, with copies instead of views."""
    names = [name for name in chat.__struct_fields__ if name not in ("texts", "question", "excluded")]
    fields = {name: getattr(chat, name) for name in names}
    question = chat.question or (
        find_user_question(chat.messages, chat.texts) if isinstance(chat.texts, list) else None
    )
    fields["question"] = question and (
        question.message,
        question.words_start,
        [(t[:1000], t[-1000:]) for t in question.texts],
    )
    fields["files"] = [(file.message, file.start, file.end, file.name, bytes(file.data)) for file in chat.files]
    for name in ("sampling", "tools"):
        fields[name] = {field: bytes(raw) for field, raw in fields[name].items()}
    return fields | {"messages": [bytes(raw) for raw in chat.messages], "system": bytes(chat.system)}


async def test_a_large_body_is_parsed_as_the_service_would(large_bodies: LargeBodies) -> None:
    """The messages, tools and sampling fields are the same bytes, and all else is the same too."""
    for case, fields in VALID.items():
        body = json.dumps(fields, ensure_ascii=False, indent=1).encode()
        assert shown(await large_bodies.parse(ACCOUNT, body)) == shown(parse_chat(body)), case


async def test_an_invalid_large_body_has_the_same_message(large_bodies: LargeBodies) -> None:
    """A 400 says the same wherever the body was parsed, also beyond the bounds of its structure."""
    for case, fields in INVALID.items():
        body = json.dumps(fields).encode()
        with pytest.raises(InvalidRequest) as expected:
            parse_chat(body)
        with pytest.raises(InvalidRequest) as refusal:
            await large_bodies.parse(ACCOUNT, body)
        assert refusal.value.message == expected.value.message, case


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (b'{"messages":[{"role":"user","content":"a",%b}]}', "messages[0]: has"),
        (
            b'{"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":{"name":"a",%b}}]}',
            "tools",
        ),
    ],
)
async def test_the_fields_of_a_message_are_bounded(large_bodies: LargeBodies, body: bytes, path: str) -> None:
    """A message or a tool with thousands of fields is refused: rewriting it would hold up other requests."""
    fields = b",".join(b'"%d":"%d"' % (number, number) for number in range(FIELDS_MAX * 10))
    with pytest.raises(InvalidRequest, match="at most 256 are allowed") as refusal:
        await large_bodies.parse(ACCOUNT, body % fields)
    assert refusal.value.message.startswith(path)


async def test_a_large_body_is_counted_with_its_character(large_bodies: LargeBodies) -> None:
    """Everything that is sent has the count that the service itself would make, and so has the character."""
    for case in VALID.values():
        body = json.dumps(case).encode()
        chat = await large_bodies.parse(ACCOUNT, body)
        assert isinstance(chat.texts, LargeTexts)
        expected = TOKENIZER.count_prompt(["hello world", *parse_chat(body).counted_texts()])
        assert await chat.texts.count("hello world", is_urgent=False) == expected
        assert least_tokens(chat.texts.chars) <= expected


@functools.cache
def body_with_keys(count: int) -> bytes:
    return MANY_KEYS % b",".join(b'"%d":1' % number for number in range(count))


@pytest.mark.slow(reason="uses up the limits of a child process")
@pytest.mark.parametrize(
    "limits",
    [
        LargeLimits(parse=ChildLimits(cpu_s=0, memory_bytes=4096 * MIB)),
        LargeLimits(parse=ChildLimits(cpu_s=60, memory_bytes=256 * MIB)),
    ],
    ids=["CPU time", "memory"],
)
async def test_a_body_that_takes_too_much_is_refused(limits: LargeLimits) -> None:
    """A body beyond the CPU time or the memory of the child is a 400, and the next request is served."""
    async with running(limits) as large_bodies:
        with pytest.raises(InvalidRequest, match="takes too"):
            await large_bodies.parse(ACCOUNT, body_with_keys(2_000_000))
        assert (await large_bodies.parse(ACCOUNT, json.dumps(VALID["tools"]).encode())).tools


async def test_a_body_that_takes_too_long_is_refused() -> None:
    """After the time limit the child is killed, and the request gets a 429."""
    async with running(LargeLimits(task_s=0.001)) as large_bodies:
        with pytest.raises(RateLimited):
            await large_bodies.parse(ACCOUNT, body_with_keys(500_000))
        assert not children()


async def until(happened: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not happened():  # noqa: ASYNC110 another process is watched
            await asyncio.sleep(0.001)


async def begin_to_parse(large_bodies: LargeBodies) -> tuple[int, "asyncio.Task[ChatRequest]"]:
    """Send a large body to a child that is stopped, so that its work cannot end before the test does."""
    await large_bodies.parse(ACCOUNT, json.dumps(VALID["tools"]).encode())
    [pid] = children()
    os.kill(pid, signal.SIGSTOP)
    parsing = asyncio.create_task(large_bodies.parse(ACCOUNT, body_with_keys(500_000)))
    await asyncio.sleep(0)  # the first bytes are sent
    return pid, parsing


async def test_a_child_that_dies_at_work_is_our_fault(large_bodies: LargeBodies) -> None:
    """The request gets a 429, because the body is not to blame."""
    pid, parsing = await begin_to_parse(large_bodies)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(RateLimited):
        await parsing
