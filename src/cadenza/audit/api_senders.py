"""What clients of the API send: each table names a place where content can be, and how a needle gets there.

Requests that are answered are sent plain and as a stream. Those that are refused are refused for each reason there is.
"""

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any

from cadenza.audit import sample_files
from cadenza.audit.client import CHAT, JSON, NO_REPLY, AuditReply
from cadenza.audit.needles import AuditNeedle
from cadenza.audit.private_config import CONCURRENCY
from cadenza.audit.stage import AuditAccounts, AuditStage, Kept, Send, Sender
from cadenza.audit.upstream import ANSWERS, FAULTS, HALF, SILENT, TOOL_CALL, PlayReply

Fields = Mapping[str, Any]
MakeFields = Callable[[AuditNeedle], Fields]

LARGE_CHARS = 100_000  # such a body is parsed in a child process
TOO_LARGE_BYTES = 40 * 1024 * 1024  # announced, and not sent
REACHED_S = 15.0
FULL_S = 2.0
WORDS = "You need not answer this. "


def chat_fields(text: object, **fields: object) -> dict[str, Any]:
    return {"model": "auto", "max_tokens": 16, "messages": [{"role": "user", "content": text}], **fields}


def _with_history(*messages: Fields, **fields: object) -> dict[str, Any]:
    return chat_fields("Go on.", **fields) | {"messages": [*messages, {"role": "user", "content": "Go on."}]}


def _tools(description: str, name: str = "look_up", **schema: object) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"text": {"type": "string", **schema}}}
    function = {"name": name, "description": description, "parameters": parameters}
    return {"tools": [{"type": "function", "function": function}]}


def _called(arguments: str, result: str) -> list[Fields]:
    call = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": arguments}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": result},
    ]


def _schema(needle: AuditNeedle) -> dict[str, Any]:
    schema = {"type": "object", "properties": {needle.word: {"type": "string", "description": needle.text}}}
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def _file(name: str, data: bytes) -> dict[str, Any]:
    code = base64.b64encode(data).decode()
    part = {"type": "file", "file": {"filename": name, "file_data": f"data:application/octet-stream;base64,{code}"}}
    return chat_fields([{"type": "text", "text": "Summarize the file."}, part])


# Requests that are answered, and what a live audit sends of them: each of those costs a little credit.
PLAIN: Mapping[str, MakeFields] = MappingProxyType(
    {
        "user message": lambda n: chat_fields(n.text),
        "text part": lambda n: chat_fields([{"type": "text", "text": n.text}]),
        "large user message": lambda n: chat_fields(n.text + WORDS * (LARGE_CHARS // len(WORDS)) + n.text),
        "system message": lambda n: _with_history({"role": "system", "content": n.text}),
        "developer message": lambda n: _with_history({"role": "developer", "content": n.text}),
        "assistant message": lambda n: _with_history({"role": "assistant", "content": n.text}),
        "reasoning of an assistant message": lambda n: _with_history(
            {"role": "assistant", "content": "Yes.", "reasoning_content": n.text}
        ),
        "name of a message": lambda n: _with_history({"role": "user", "name": n.word, "content": "Hello."}),
        "unknown field of a message": lambda n: _with_history({"role": "user", "content": "Hello.", n.word: n.text}),
        "stop": lambda n: chat_fields("Hello.", stop=[n.word]),
        "user": lambda n: chat_fields("Hello.", user=n.text),
        "metadata": lambda n: chat_fields("Hello.", metadata={n.word: n.text}),
        "response_format": lambda n: chat_fields("Hello.", response_format=_schema(n)),
        "value of an unknown field": lambda n: chat_fields("Hello.", some_field=n.text),
        "name of an unknown field": lambda n: chat_fields("Hello.", **{n.word: 1}),
    }
)
TOOLS: Mapping[str, MakeFields] = MappingProxyType(
    {
        "user message": lambda n: chat_fields(n.text, **_tools("Looks up a text.")),
        "description of a tool": lambda n: chat_fields("Hello.", **_tools(n.text)),
        "name of a tool": lambda n: chat_fields("Hello.", **_tools("Looks up a text.", n.word)),
        "schema of a tool": lambda n: chat_fields("Hello.", **_tools("Looks up a text.", enum=[n.text])),
        "arguments of a call": lambda n: _with_history(
            {"role": "user", "content": "Hello."}, *_called(json.dumps({"text": n.text}), "Done."), **_tools("A tool.")
        ),
        "result of a call": lambda n: _with_history(
            {"role": "user", "content": "Hello."}, *_called("{}", n.text), **_tools("A tool.")
        ),
    }
)
LIVE = frozenset({"user message", "system message", "result of a call"})

# Requests that are refused, or answered if a route takes them.
DOUBTFUL: Mapping[str, MakeFields] = MappingProxyType(
    {
        "model": lambda n: chat_fields("Hello.", model=n.word),
        "temperature of a wrong type": lambda n: chat_fields("Hello.", temperature=n.text),
        "max_tokens of a wrong type": lambda n: chat_fields("Hello.", max_tokens=n.text),
        "stream of a wrong type": lambda n: chat_fields("Hello.", stream=n.text),
        "stop of a wrong type": lambda n: chat_fields("Hello.", stop={n.word: n.text}),
        "response_format of a wrong type": lambda n: chat_fields("Hello.", response_format=n.text),
        "messages of a wrong type": lambda n: {"messages": n.text},
        "message of a wrong type": lambda n: {"messages": [n.text]},
        "role": lambda n: {"messages": [{"role": n.word, "content": n.text}]},
        "content of a wrong type": lambda n: {"messages": [{"role": "user", "content": {n.word: n.text}}]},
        "type of a part": lambda n: chat_fields([{"type": n.word, n.word: n.text}]),
        "tools of a wrong type": lambda n: chat_fields("Hello.", tools=n.text),
        "tool of a wrong type": lambda n: chat_fields("Hello.", tools=[{n.word: n.text}]),
        "tool_choice that is not defined": lambda n: chat_fields(
            "Hello.", **_tools("A tool."), tool_choice={"type": "function", "function": {"name": n.word}}
        ),
        "tool_call_id without a call": lambda n: _with_history(
            {"role": "tool", "tool_call_id": n.word, "content": n.text}, **_tools("A tool.")
        ),
        "legacy functions": lambda n: chat_fields("Hello.", functions=[{"name": n.word, "description": n.text}]),
        "n": lambda n: chat_fields(n.text, n=2),
        "image as data": lambda n: chat_fields([_image(f"data:image/png;base64,{_base64(n)}")]),
        "image by address": lambda n: chat_fields([_image(f"https://images.invalid/{n.word}.png")]),
        "audio": lambda n: chat_fields([{"type": "input_audio", "input_audio": {"data": _base64(n), "format": "wav"}}]),
        "file_id": lambda n: chat_fields([{"type": "file", "file": {"file_id": n.word}}]),
        "file with tools": lambda n: _file("a.txt", n.text.encode()) | _tools("A tool."),
        "file that is not base64": lambda n: chat_fields([{"type": "file", "file": {"file_data": n.text}}]),
    }
)
BODIES: Mapping[str, Callable[[AuditNeedle], bytes]] = MappingProxyType(
    {
        "JSON that is cut off": lambda n: _body(n)[:-3],
        "JSON with more behind it": lambda n: _body(n) + n.text.encode(),
        "JSON that is not UTF-8": lambda n: _body(n).replace(b"50%", b"\xff\xfe"),
        "text that is not JSON": lambda n: n.text.encode(),
        "JSON that is not an object": lambda n: json.dumps([n.text]).encode(),
        "JSON of great depth": lambda n: b'{"messages":' + b"[" * 5000 + f'"{n.word}"'.encode(),
        "large body that is cut off": lambda n: _body(n)[:-3] + b" " * LARGE_CHARS,
    }
)
HEADERS: Mapping[str, Callable[[AuditNeedle], Mapping[str, str]]] = MappingProxyType(
    {
        "Idempotency-Key": lambda n: {"idempotency-key": n.word},
        "User-Agent": lambda n: {"user-agent": n.word},
        "Referer": lambda n: {"referer": f"https://pages.invalid/{n.word}"},
        "Cookie": lambda n: {"cookie": f"{n.word}={n.word}"},
        "Origin": lambda n: {"origin": f"https://{n.word}.invalid"},
        "X-Forwarded-For": lambda n: {"x-forwarded-for": n.word},
        "Authorization": lambda n: {"authorization": f"Bearer {n.word}"},
        "X-API-Key": lambda n: {"authorization": "", "x-api-key": n.word},
        "Content-Type": lambda n: {"content-type": f"text/{n.word}"},
        "Content-Encoding": lambda n: {"content-encoding": n.word},
        "Expect": lambda n: {"expect": n.word},
        "tracestate and baggage": lambda n: {
            "traceparent": f"00-{'1' * 32}-{'2' * 16}-01",
            "tracestate": f"a={n.word}",
            "baggage": f"b={n.word}",
        },
        "X-Request-Id that is too long": lambda n: {"x-request-id": f"{n.word} {n.word * 20}"},
        "X-Cadenza-Grounding": lambda n: {"x-cadenza-grounding": n.word},
        "unknown header": lambda n: {n.word: n.word},
    }
)
PATHS: Mapping[str, Callable[[AuditNeedle], tuple[str, str]]] = MappingProxyType(
    {
        "query of a chat": lambda n: ("POST", f"{CHAT}?q={n.word}"),
        "unknown model": lambda n: ("GET", f"/v1/models/{n.word}"),
        "unknown path": lambda n: ("GET", f"/v1/{n.word}"),
        "unknown method": lambda n: (n.word.upper(), CHAT),
        "usage": lambda n: ("GET", f"/v1/usage?start={n.word}&group_by={n.word}"),
        "embeddings": lambda _: ("POST", "/v1/embeddings"),
        "responses": lambda _: ("POST", "/v1/responses"),
        "path that is not ASCII": lambda n: ("GET", f"/%ff{n.word}"),
    }
)


def _body(needle: AuditNeedle) -> bytes:
    return json.dumps(chat_fields(needle.text), ensure_ascii=False).encode()


def _base64(needle: AuditNeedle) -> str:
    return base64.b64encode(needle.text.encode()).decode()


def _image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def _chat(make: MakeFields, *, is_stream: bool, reply: PlayReply | None = None) -> Send:
    async def send(stage: AuditStage, needle: AuditNeedle) -> AuditReply:
        stage.play(needle, *([reply] if reply else []))
        return await stage.client.chat({"stream": is_stream, **make(needle)})

    return send


def _bytes(make: Callable[[AuditNeedle], bytes]) -> Send:
    return lambda stage, needle: stage.client.chat(make(needle))


def _header(make: Callable[[AuditNeedle], Mapping[str, str]]) -> Send:
    return lambda stage, needle: stage.client.chat(chat_fields("Hello."), make(needle))


def _path(make: Callable[[AuditNeedle], tuple[str, str]]) -> Send:
    async def send(stage: AuditStage, needle: AuditNeedle) -> AuditReply:
        method, path = make(needle)
        return await stage.client.send(method, path, _body(needle), JSON)

    return send


def _raw(make: Callable[[AuditNeedle], bytes]) -> Send:
    return lambda stage, needle: stage.client.send_raw(make(needle))


def _key(choose: Callable[[AuditAccounts], str]) -> Send:
    """A request with a key that is refused."""
    return lambda stage, needle: stage.client_with(choose(stage.accounts)).chat(chat_fields(needle.text))


async def _pass_the_rate(stage: AuditStage, needle: AuditNeedle) -> AuditReply:
    client = stage.client_with(stage.accounts.key_with_low_rate)
    await client.chat(chat_fields("Hello.", n=2))
    return await client.chat(chat_fields(needle.text))


async def _repeat(stage: AuditStage, needle: AuditNeedle) -> AuditReply:
    headers = {"idempotency-key": f"repeated-{needle.word}"}
    await stage.client.chat(chat_fields(needle.text), headers)
    return await stage.client.chat(chat_fields(needle.text), headers)


async def _exceed_size(stage: AuditStage, needle: AuditNeedle) -> AuditReply:
    headers = {**JSON, "content-length": str(TOO_LARGE_BYTES)}
    return await stage.client.send("POST", CHAT, _body(needle), headers)


async def _fill_slots(stage: AuditStage, needle: AuditNeedle) -> AuditReply:
    """Fill all slots with requests that get no reply, then send one more."""
    async with contextlib.AsyncExitStack() as waiting:
        for _ in range(CONCURRENCY):
            stage.play(needle, SILENT)
            data = stage.client.encode("POST", CHAT, _body(needle), JSON)
            await waiting.enter_async_context(stage.client.open(data))
            with contextlib.suppress(TimeoutError):  # with several workers, one may be full before the others
                await stage.upstream.until_asked(FULL_S)
        return await stage.client.chat(chat_fields(needle.text))


def _leave(part: float) -> Send:
    """Disconnect when this part of the request is sent."""

    async def send(stage: AuditStage, needle: AuditNeedle) -> AuditReply:
        data = stage.client.encode("POST", CHAT, _body(needle), JSON)
        async with stage.client.open(data[: int(len(data) * part)]):
            return NO_REPLY

    return send


def _leave_waiting(*, is_stream: bool) -> Send:
    """Disconnect while the upstream says nothing."""

    async def send(stage: AuditStage, needle: AuditNeedle) -> AuditReply:
        stage.play(needle, SILENT)
        body = json.dumps(chat_fields(needle.text, stream=is_stream)).encode()
        async with stage.client.open(stage.client.encode("POST", CHAT, body, JSON)):
            await stage.upstream.until_asked(REACHED_S)
        return NO_REPLY

    return send


@asynccontextmanager
async def half_stream(stage: AuditStage, needle: AuditNeedle) -> AsyncIterator[None]:
    """A stream that has begun and does not go on, for a block."""
    stage.play(needle, HALF)
    body = json.dumps(chat_fields(needle.text, stream=True)).encode()
    async with stage.client.open(stage.client.encode("POST", CHAT, body, JSON)) as (reader, _):
        async with asyncio.timeout(REACHED_S):
            await reader.readuntil(needle.word.encode())
        yield


async def _leave_stream(stage: AuditStage, needle: AuditNeedle) -> AuditReply:
    async with half_stream(stage, needle):
        return NO_REPLY


def answered() -> Iterator[Sender]:
    """Requests that are answered: needles in what is sent, and in what the upstream says."""
    for path, table in (("plain", PLAIN), ("tools", TOOLS)):
        for name, make in table.items():
            for mode in ("whole", "stream"):
                send = _chat(make, is_stream=mode == "stream", reply=TOOL_CALL if path == "tools" else None)
                yield Sender(f"chat, {path}, {mode}: {name}", send, is_live=name in LIVE)
    for name, make_file in sample_files.READ.items():
        yield Sender(f"chat, file: .{name}", _chat(_file_maker(name, make_file), is_stream=False))
    yield Sender(
        "chat, file: its name",
        _chat(lambda n: _file(f"{n.word}.txt", b"Nothing."), is_stream=False),
        is_live=True,
    )
    for name, reply in ANSWERS.items():
        for mode in ("whole", "stream"):
            make = TOOLS["user message"] if reply is TOOL_CALL else PLAIN["user message"]
            yield Sender(f"answer, {mode}: {name}", _chat(make, is_stream=mode == "stream", reply=reply))


def refused() -> Iterator[Sender]:
    """Requests that are refused, each for another reason."""
    for name, make in DOUBTFUL.items():
        yield Sender(f"chat, unusual: {name}", _chat(make, is_stream=False), is_live=True)
    for name, make_file in sample_files.REFUSED.items():
        yield Sender(f"refused: file .{name}", _chat(_file_maker(name, make_file), is_stream=False), is_live=True)
    for name, make_body in BODIES.items():
        yield Sender(f"refused: {name}", _bytes(make_body), is_live=True)
    for name, make_header in HEADERS.items():
        yield Sender(f"header: {name}", _header(make_header))
    for name, make_path in PATHS.items():
        yield Sender(f"path: {name}", _path(make_path), is_live=True)
    yield Sender(
        "header: X-Request-Id",
        _header(lambda n: {"x-request-id": n.word}),
        kept=frozenset({Kept.STORE, Kept.LOG, Kept.TRACES}),
        tables=frozenset({"usage", "entries", "holds", "idempotency"}),
    )
    yield Sender("not HTTP: bytes", _raw(lambda n: f"{n.word}\0{n.text}\r\n\r\n".encode()), is_live=True)
    yield Sender("not HTTP: header", _raw(lambda n: f"GET / HTTP/1.1\r\n{n.word}\r\n\r\n".encode()), is_live=True)
    yield Sender("refused: no key", lambda s, n: s.client_with("").chat(chat_fields(n.text)), is_live=True)
    yield Sender("refused: revoked key", _key(lambda accounts: accounts.revoked_key), is_live=True)
    yield Sender("refused: scope of the key", _key(lambda accounts: accounts.key_without_scope), is_live=True)
    yield Sender("refused: credit", _key(lambda accounts: accounts.key_without_credit), is_live=True)
    yield Sender("refused: rate", _pass_the_rate, is_live=True)
    yield Sender("refused: repeated", _repeat)
    yield Sender("refused: size", _exceed_size, is_live=True)
    yield Sender("refused: no slot is free", _fill_slots)


def broken() -> Iterator[Sender]:
    """Clients that disconnect in each phase, and upstreams that fail in each way. Failures come last."""
    yield Sender("disconnect: in the head", _leave(0.2), is_live=True)
    yield Sender("disconnect: in the body", _leave(0.9), is_live=True)
    yield Sender("disconnect: waiting for the answer", _leave_waiting(is_stream=False))
    yield Sender("disconnect: waiting for the stream", _leave_waiting(is_stream=True))
    yield Sender("disconnect: in the stream", _leave_stream)
    for name, reply in FAULTS.items():
        for mode in ("whole", "stream"):
            send = _chat(PLAIN["user message"], is_stream=mode == "stream", reply=reply)
            yield Sender(f"upstream, {mode}: {name}", send)


def _file_maker(name: str, make: sample_files.MakeFile) -> MakeFields:
    return lambda needle: _file(f"a.{name}", make(needle.word))
