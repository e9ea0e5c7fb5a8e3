"""The upstream of the benchmark: it answers as a request's tag says, and records every token that it made.

It runs inside the benchmark's own process, which no fault touches, so its record is complete. It counts prompts with
o200k, four tokens more for each message, and sends one token in each chunk. A request whose connection is closed stops.
"""

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from tests.loopback import LoopbackUpstream, Request, Step, Wait

from bench.money.reckon import Supplied
from bench.money.script import ScriptedRequest
from bench.upstream import GET_REPLY, STREAM_HEAD, chunk, counts_of, last_chunks, whole_reply
from cadenza.core.tokens import Tokenizer

WORD = " la"


class RecordingUpstream:
    """`with RecordingUpstream().running() as port`."""

    def __init__(self) -> None:
        self.served = list[Supplied]()
        self._ids = itertools.count(1)
        self._tokenizer = Tokenizer()

    @contextlib.contextmanager
    def running(self) -> Iterator[int]:
        with LoopbackUpstream() as server:
            server.always(self)
            port = urlsplit(server.base_url).port
            assert port
            yield port

    def steps(self, request: Request) -> Iterator[Step]:
        """The reply, which ends where the connection is closed."""
        if request.method == "GET":
            yield GET_REPLY
            return
        body = request.json
        texts = [text_of(message) for message in body["messages"]]
        ask, record = ScriptedRequest.read(texts[-1]), self._record(texts)
        allowed = body.get("max_tokens") or body.get("max_completion_tokens") or ask.tokens
        is_stream = bool(body.get("stream"))
        if is_stream:
            yield STREAM_HEAD + chunk({"role": "assistant", "content": ""}, id_=record.id)
        for _ in range(min(ask.tokens, allowed)):
            yield Wait(ask.gap_ms / 1000)
            record.sent_tokens += 1
            if is_stream:
                yield chunk({"content": WORD}, id_=record.id)
        usage = counts_of(record.prompt_tokens, record.sent_tokens)
        if is_stream:
            yield chunk({}, "stop", record.id) + last_chunks(usage, record.id)
        else:
            yield whole_reply(WORD * record.sent_tokens, usage, record.id)

    def _record(self, texts: Sequence[str]) -> Supplied:
        prompt_tokens = sum(self._tokenizer.count(text) + 4 for text in texts)
        record = Supplied(ScriptedRequest.read(texts[-1]).number, f"chatcmpl-bench{next(self._ids):08d}", prompt_tokens)
        self.served.append(record)
        return record


def text_of(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
