"""Every case: a place where content can be, how a canary gets there, and where it is stored by design.

What is stored by design must be in its own place only, and a search that does not find it there would find nothing else
either. What was deleted must be nowhere.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial

from cadenza import clock, parts
from cadenza.control.account.accounts import create_account
from cadenza.control.account.erasure import erase_account
from cadenza.control.keys import KeyOrder, create_key
from cadenza.core.records import COMMAND_LINE, DEFAULT_CLASS
from cadenza.http.raw_client import open_with, send_bytes
from cadenza.parts.retention.canaries import TEXT, WORD, Canary, Template
from cadenza.parts.retention.case import (
    CHAT,
    DELETED,
    FILLER,
    HELLO,
    REACHED_S,
    SCHEMA,
    Case,
    CaseStep,
    Fields,
    RetentionFixture,
    chat,
    send_case,
)
from cadenza.parts.retention.client import JSON
from cadenza.parts.retention.config import CONCURRENCY
from cadenza.parts.retention.places import LOG, TRACES
from cadenza.parts.retention.upstream import (
    ANSWERS,
    FAULTS,
    GOOD,
    HALF,
    SILENT,
    TOOL_CALL,
    UpstreamScript,
)

FULL_S = 2.0


def tools(description: str = "A tool.", name: str = "look_up", **schema: Template) -> Fields:
    parameters = {"type": "object", "properties": {"text": {"type": "string", **schema}}}
    function = {"name": name, "description": description, "parameters": parameters}
    return {"tools": [{"type": "function", "function": function}]}


def called(arguments: str, result: str) -> Fields:
    call = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": arguments}}
    asked = {"role": "assistant", "content": None, "tool_calls": [call]}
    return chat("Go on.", HELLO, asked, {"role": "tool", "tool_call_id": "call_1", "content": result}, **tools())


def encoded(canary: Canary, cut: int | None = None, after: bytes = b"") -> bytes:
    return json.dumps(chat(canary.text), ensure_ascii=False).encode()[:cut] + after


PLAIN = {
    "user message": chat(TEXT),
    "text part": chat([{"type": "text", "text": TEXT}]),
    "large user message": chat(TEXT + FILLER + TEXT),
    "system message": chat("Go on.", {"role": "system", "content": TEXT}),
    "developer message": chat("Go on.", {"role": "developer", "content": TEXT}),
    "assistant message": chat("Go on.", {"role": "assistant", "content": TEXT}),
    "reasoning of an assistant message": chat("Go on.", {**HELLO, "role": "assistant", "reasoning_content": TEXT}),
    "name of a message": chat("Go on.", {**HELLO, "name": WORD}),
    "unknown field of a message": chat("Go on.", {**HELLO, WORD: TEXT}),
    "stop": chat(stop=[WORD]),
    "user": chat(user=TEXT),
    "metadata": chat(metadata={WORD: TEXT}),
    "prompt_cache_key": chat(prompt_cache_key=TEXT),
    "response_format": chat(response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}),
    "value of an unknown field": chat(some_field=TEXT),
    "name of an unknown field": chat(**{WORD: 1}),
}
TOOLS = {
    "user message": chat(TEXT, **tools()),
    "description of a tool": chat(**tools(TEXT)),
    "name of a tool": chat(**tools(name=WORD)),
    "schema of a tool": chat(**tools(enum=[TEXT])),
    "arguments of a call": called('{"text": "{word}"}', "Done."),
    "result of a call": called("{}", TEXT),
}
SCALARS = ("temperature", "max_tokens", "stream", "response_format", "tools", "messages")
IMAGES = {"data": "data:image/png;base64,{word}", "address": "https://images.invalid/{word}"}
UNUSUAL: Fields = {
    **{f"{name} of a wrong type": chat(**{name: TEXT}) for name in SCALARS},
    "model": chat(model=WORD),
    "stop of a wrong type": chat(stop={WORD: TEXT}),
    "message of a wrong type": chat(messages=[TEXT]),
    "role": chat(messages=[{"role": WORD, "content": TEXT}]),
    "content of a wrong type": chat({WORD: TEXT}),
    "type of a part": chat([{"type": WORD, WORD: TEXT}]),
    "tool of a wrong type": chat(tools=[{WORD: TEXT}]),
    "tool_choice that is not defined": chat(tool_choice={"type": "function", "function": {"name": WORD}}, **tools()),
    "tool_call_id without a call": chat("Go on.", {"role": "tool", "tool_call_id": WORD, "content": TEXT}, **tools()),
    "legacy functions": chat(functions=[{"name": WORD, "description": TEXT}]),
    "n": chat(TEXT, n=2),
    **{f"image as {name}": chat([{"type": "image_url", "image_url": {"url": url}}]) for name, url in IMAGES.items()},
    "audio": chat([{"type": "input_audio", "input_audio": {"data": WORD, "format": "wav"}}]),
    "file_id": chat([{"type": "file", "file": {"file_id": WORD}}]),
    "file with tools": {**chat([{"type": "file", "file": {"filename": WORD, "file_data": WORD}}]), **tools()},
    "file that is not base64": chat([{"type": "file", "file": {"file_data": TEXT}}]),
}
BODIES: dict[str, Callable[[Canary], bytes]] = {
    "JSON that is cut off": lambda canary: encoded(canary, -3),
    "JSON with more behind it": lambda canary: encoded(canary, after=canary.text.encode()),
    "JSON that is not UTF-8": lambda canary: encoded(canary).replace(b"50%", b"\xff\xfe"),
    "text that is not JSON": lambda canary: canary.text.encode(),
    "JSON that is not an object": lambda canary: b"[%b]" % encoded(canary),
    "JSON of great depth": lambda canary: b'{"messages":' + b"[" * 5000 + encoded(canary),
    "large body that is cut off": lambda canary: encoded(canary, -3, b" " * len(FILLER)),
}
TRACE = f"00-{'1' * 32}-{'2' * 16}-01"
NAMES = ("Idempotency-Key", "User-Agent", "X-Forwarded-For", "Content-Encoding", "Expect", "X-Cadenza-Grounding")
HEADERS: dict[str, dict[str, str]] = {
    **{name: {name.lower(): WORD} for name in NAMES},
    "X-Request-Id": {"x-request-id": WORD},
    "Referer": {"referer": "https://pages.invalid/{word}"},
    "Cookie": {"cookie": "{word}={word}"},
    "Origin": {"origin": "https://{word}.invalid"},
    "Authorization": {"authorization": "Bearer {word}"},
    "X-API-Key": {"authorization": "", "x-api-key": WORD},
    "Content-Type": {"content-type": "text/{word}"},
    "tracestate and baggage": {"traceparent": TRACE, "tracestate": "a={word}", "baggage": WORD},
    "X-Request-Id that is too long": {"x-request-id": "{word} " + "{word}" * 20},
    "unknown header": {WORD: WORD},
}
TRANSLATED: dict[str, tuple[str, dict[str, Fields]]] = {}  # requests of other protocols, and their bodies
for part in parts.having("cases"):
    TRANSLATED |= part.load("cases").AUDIT.chats
PROTOCOLS = {"chat": (CHAT, PLAIN), **TRANSLATED}
PLAIN_CHAT = [CaseStep(CHAT, chat(TEXT))]
REQUESTS: dict[str, list[CaseStep]] = {
    "path: query of a chat": [CaseStep(f"{CHAT}?q={WORD}", chat(TEXT))],
    "path: unknown model": [CaseStep("GET /v1/models/{word}", chat(TEXT))],
    "path: unknown path": [CaseStep("GET /v1/{word}", chat(TEXT))],
    "path: unknown method": [CaseStep("X{word} /v1/chat/completions", chat(TEXT))],
    "path: usage": [CaseStep("GET /v1/usage?start={word}&group_by={word}")],
    **{f"path: {name}": [CaseStep(f"POST /v1/{name}", chat(TEXT))] for name in ("embeddings", "completions")},
    "path: path of another API": [CaseStep("POST /api/chat", chat(TEXT))],
    "path: path that is not ASCII": [CaseStep("GET /%ff{word}")],
    **{
        f"refused: {name}": [CaseStep(CHAT, chat(TEXT), client=name)]
        for name in ("no key", "revoked key", "key without scope", "credit")
    },
    "refused: rate": 2 * [CaseStep(CHAT, chat(TEXT), client="rate")],
    "refused: repeated": 2 * [CaseStep(CHAT, chat(TEXT), {**JSON, "idempotency-key": "repeated-{word}"})],
    "refused: size": [CaseStep(CHAT, chat(TEXT), {**JSON, "content-length": str(40 * 1024 * 1024)})],  # it is not sent
}


# Tables of the store, and other places, where a canary is stored by design.
KEPT = {
    "the address of the account": {"accounts", "audit_events"},
    "header: X-Request-Id": {"usage", "entries", "idempotency", LOG, TRACES},
    "an account that was erased": {DELETED},
}


def kept_by_design() -> dict[str, set[str]]:
    """Of all cases."""
    return KEPT | {name: kept for part in parts.having("cases") for name, kept in part.load("cases").AUDIT.kept.items()}


async def send_raw(template: str, fixture: RetentionFixture, canary: Canary) -> int:
    return (await send_bytes(fixture.service.port, canary.fill(template).encode(), REACHED_S)).status


def encode_chat(fixture: RetentionFixture, canary: Canary, protocol: str = "chat", *, stream: bool = False) -> bytes:
    request, bodies = PROTOCOLS[protocol]
    method, path = request.split()
    return fixture.clients["key"].encode(method, path, canary.fill(plain_body(bodies)) | {"stream": stream})


async def fill_slots(fixture: RetentionFixture, canary: Canary) -> int | None:
    """Fill all slots with requests that get no reply, then send one more."""
    async with AsyncExitStack() as waiting:
        for _ in range(CONCURRENCY):
            fixture.upstream.play(canary, SILENT)
            await waiting.enter_async_context(open_with(fixture.service.port, encode_chat(fixture, canary)))
            with suppress(TimeoutError):  # with several workers, one may be full before the others
                await fixture.upstream.until_reached(FULL_S)
        return await send_case(PLAIN_CHAT, fixture, canary)


async def disconnect(fixture: RetentionFixture, canary: Canary, part: float = 1.0, *, stream: bool = False) -> int:
    """Disconnect when this part of the request is sent; after the whole, when it has reached the upstream."""
    fixture.upstream.play(canary, SILENT)
    data = encode_chat(fixture, canary, stream=stream)
    async with open_with(fixture.service.port, data[: int(len(data) * part)]):
        if part == 1.0:
            await fixture.upstream.until_reached(REACHED_S)
    return 0


@asynccontextmanager
async def half_stream(fixture: RetentionFixture, canary: Canary, protocol: str = "chat") -> AsyncIterator[None]:
    """A stream that has begun and does not go on, for a block."""
    fixture.upstream.play(canary, HALF)
    async with open_with(fixture.service.port, encode_chat(fixture, canary, protocol, stream=True)) as reader:
        async with asyncio.timeout(REACHED_S):
            await reader.readuntil(canary.word.encode())
        yield


async def leave_stream(fixture: RetentionFixture, canary: Canary, protocol: str) -> int:
    async with half_stream(fixture, canary, protocol):
        return 0


async def erase(fixture: RetentionFixture, canary: Canary) -> None:
    """Erase another account, with a key."""
    email, now_ms = f"{canary.word}@audit.invalid", clock.now_ms()
    made = await create_account(fixture.store, email, 0, DEFAULT_CLASS, now_ms)
    await create_key(fixture.store, made.owner, KeyOrder(canary.word), now_ms)
    await erase_account(fixture.store, email, COMMAND_LINE, now_ms)


def both(name: str, fields: Fields, script: UpstreamScript = GOOD, request: str = CHAT) -> dict[str, Case]:
    """The same request, for a whole reply and for a stream."""
    bodies = {"whole": {**fields, "stream": False}, "stream": {**fields, "stream": True}}
    return {name.format(mode): [CaseStep(request, body, script=script)] for mode, body in bodies.items()}


def plain_body(bodies: Mapping[str, Fields]) -> Fields:
    """With a text in its one message."""
    return next(iter(bodies.values()))


def translated_cases() -> dict[str, Case]:
    """Requests of other protocols: their fields, what a model says in them, and bodies with mistakes."""
    cases = dict[str, Case]()
    for name, (path, bodies) in TRANSLATED.items():
        for place, fields in bodies.items():
            cases |= both(f"{name}, {{}}: {place}", fields, request=path)
        for said, script in ANSWERS.items():
            cases |= both(f"{name}, {{}}: a model says {said}", bodies["tool"], script, path)
        cases |= {f"{name}, refused: {mistake}": [CaseStep(path, body)] for mistake, body in BODIES.items()}
    return cases


def all_cases() -> dict[str, Case]:
    """All cases for a service that stays up. Faults come last, so that healthy routes answer the others."""
    cases = dict[str, Case]()
    for path, table, script in (("plain", PLAIN, GOOD), ("tools", TOOLS, TOOL_CALL)):
        for name, fields in table.items():
            cases |= both(f"chat, {path}, {{}}: {name}", fields, script)
    for name, script in ANSWERS.items():
        cases |= both(f"answer, {{}}: {name}", (TOOLS if script is TOOL_CALL else PLAIN)["user message"], script)
    cases |= translated_cases()
    cases |= {"an account that was erased": erase}
    cases |= {f"chat, unusual: {name}": [CaseStep(CHAT, fields)] for name, fields in UNUSUAL.items()}
    cases |= {f"refused: {name}": [CaseStep(CHAT, body)] for name, body in BODIES.items()}
    cases |= {f"header: {name}": [CaseStep(CHAT, chat(), {**JSON, **one})] for name, one in HEADERS.items()}
    cases |= REQUESTS
    for part in parts.having("cases"):
        cases |= part.load("cases").AUDIT.cases
    cases |= {
        "not HTTP: bytes": partial(send_raw, "{word}\0{text}\r\n\r\n"),
        "not HTTP: header": partial(send_raw, "GET / HTTP/1.1\r\n{word}\r\n\r\n"),
        "refused: no slot is free": fill_slots,
        "disconnect: in the head": partial(disconnect, part=0.2),
        "disconnect: in the body": partial(disconnect, part=0.9),
        "disconnect: waiting for the answer": disconnect,
        "disconnect: waiting for the stream": partial(disconnect, stream=True),
        **{f"disconnect: in the stream of {name}": partial(leave_stream, protocol=name) for name in PROTOCOLS},
    }
    for fault, script in FAULTS.items():
        for name, (request, bodies) in PROTOCOLS.items():
            cases |= both(f"upstream, {name}, {{}}: {fault}", plain_body(bodies), script, request)
    return cases
