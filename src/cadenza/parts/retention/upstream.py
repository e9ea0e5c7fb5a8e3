"""The other end of everything that the audited service calls: models, a search engine, web pages, a trace collector.

It listens on loopback in the process of the audit. `play` chooses how the next requests are answered.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from cadenza.http.body import BodyMemory
from cadenza.http.connection import ConnectionSettings
from cadenza.http.connections import Connections
from cadenza.http.events import write_event
from cadenza.http.exchange import Exchange
from cadenza.parts.retention.canaries import TEXT, WORD, Canary, Template
from cadenza.server.acceptor import Acceptor
from cadenza.server.server import bind

JSON = b"content-type: application/json\r\n"
EVENTS = b"content-type: text/event-stream\r\n"
SILENCE_S = 120.0  # longer than the audit waits for anything
ERROR = {"error": {"message": WORD, "type": WORD, "code": WORD, "param": WORD}}
CALL = {"index": 0, "id": TEXT, "type": "function", "function": {"name": "look_up", "arguments": '{"a": "{word}"}'}}


class UpstreamScript(msgspec.Struct, frozen=True):
    """How a model replies: with a message, else with a status and a body, else with nothing or the start of a stream.

    A stream starts with the canary and goes on with `rest`. After `wait_s` the connection is aborted.
    """

    message: dict[str, Any] | None = None
    finish: str = "stop"
    status: int = 0
    body: Any = TEXT  # a text, or anything else as JSON
    header: str = ""
    rest: str | None = None
    wait_s: float = 0.01  # for the service to read the last bytes


GOOD = UpstreamScript({"content": f"An answer: {TEXT}."})
TOOL_CALL = UpstreamScript({"content": None, "tool_calls": [CALL]}, "tool_calls")
SILENT = UpstreamScript(wait_s=SILENCE_S)
HALF = UpstreamScript(rest="", wait_s=SILENCE_S)
ANSWERS = {
    "text, and the upstream's own names": GOOD,
    "a tool call": TOOL_CALL,
    "reasoning": UpstreamScript({"content": "Yes.", "reasoning_content": TEXT}),
    "a refusal": UpstreamScript({"content": None, "refusal": TEXT}),
    "an unknown finish reason": UpstreamScript({"content": "Yes."}, TEXT),
}
FAULTS = {
    "400": UpstreamScript(status=400, body=ERROR),
    "401": UpstreamScript(status=401, body=ERROR),
    "404": UpstreamScript(status=404, body=ERROR),
    "429, with a header": UpstreamScript(status=429, header=f"retry-after: {WORD}\r\n"),
    "500": UpstreamScript(status=500),
    "200 with an error": UpstreamScript(status=200, body=ERROR),
    "200 that is not JSON": UpstreamScript(status=200),
    "200 with JSON of another form": UpstreamScript(status=200, body={TEXT: [TEXT]}),
    "no reply": UpstreamScript(wait_s=0.0),
    "a stream that breaks off": UpstreamScript(rest=""),
    "a stream with an error": UpstreamScript(rest=f"data: {json.dumps(ERROR)}\n\n"),
    "a stream with malformed events": UpstreamScript(rest=f"data: {{{TEXT}\n\n"),
}


class AuditUpstream:
    """What is answered, and what was received."""

    def __init__(self) -> None:
        self.url = ""
        self.received = Counter[str]()  # requests, by the server that they were for
        self.spans: list[bytes] = []  # what its trace collector received
        self.play(Canary("", "nothing in particular"))

    def play(self, canary: Canary, script: UpstreamScript = GOOD) -> None:
        """Answer like this from now on."""
        self._canary, self._script, self._reached = canary, script, asyncio.Event()

    async def until_reached(self, within_s: float) -> None:
        """Return once a model was called since `play`; TimeoutError if none is."""
        async with asyncio.timeout(within_s):
            await self._reached.wait()

    async def serve(self, exchange: Exchange) -> None:
        body, path = bytes(await exchange.read_body(BodyMemory(2**26))), exchange.request.path
        if path.endswith("/chat/completions"):
            self.received["model"] += 1
            self._reached.set()
            await self._reply(exchange, self._script, is_stream=b'"stream":true' in body)
        elif path.startswith("/page"):
            self.received["web page"] += 1
            exchange.respond(200, b"content-type: text/html\r\n", self._encode(f"<p>{TEXT}, and {TEXT}.</p>"))
        elif "search" in path:
            self.received["search engine"] += 1
            hits = [{"url": f"{self.url}/page/1", "title": TEXT, "content": TEXT, "description": TEXT}]
            exchange.respond(200, JSON, self._encode({"type": "search", "results": hits, "web": {"results": hits}}))
        else:
            self.received["trace collector"] += 1
            self.spans.append(body)
            exchange.respond(200, b"content-type: application/x-protobuf\r\n", b"")

    async def _reply(self, exchange: Exchange, script: UpstreamScript, *, is_stream: bool) -> None:
        if script.message and is_stream:
            exchange.start_stream(EVENTS, first=self._chunk({"role": "assistant"}))
            exchange.write(self._chunk(script.message))
            exchange.finish_stream(self._chunk({}, script.finish) + b"data: [DONE]\n\n")
        elif script.message:
            message = {"role": "assistant", **script.message}
            exchange.respond(200, JSON, self._completion("message", message, script.finish))
        elif script.status:
            header = self._canary.fill(script.header).encode()
            exchange.respond(script.status, JSON + header, self._encode(script.body))
        else:
            if script.rest is not None:
                exchange.start_stream(EVENTS, first=self._chunk({"role": "assistant", "content": f"{TEXT} "}))
                exchange.write(self._encode(script.rest))
            await asyncio.sleep(script.wait_s)

    def _chunk(self, delta: Template, finish: str | None = None) -> bytes:
        return write_event(self._completion("delta", delta, finish))

    def _completion(self, part: str, message: Template, finish: str | None) -> bytes:
        """With the upstream's own names for the reply and its model, which must not be stored either."""
        usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
        names = {"id": TEXT, "model": TEXT, "system_fingerprint": TEXT, "created": 1, "usage": usage}
        return self._encode({**names, "choices": [{"index": 0, part: message, "finish_reason": finish}]})

    def _encode(self, template: Template) -> bytes:
        filled = self._canary.fill(template)
        return (filled if isinstance(filled, str) else json.dumps(filled, ensure_ascii=False)).encode()


@asynccontextmanager
async def audit_upstream() -> AsyncIterator[AuditUpstream]:
    """Listen on a port of loopback until the block ends."""
    upstream, listener, connections = AuditUpstream(), bind("127.0.0.1", 0), Connections()
    upstream.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    acceptor = Acceptor(listener, upstream.serve, upstream.serve, ConnectionSettings(), connections)
    try:
        yield upstream
    finally:
        acceptor.close()
        for connection in connections:
            connection.abort()
