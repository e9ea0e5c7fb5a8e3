"""What an upstream answers in a transcript: events of a stream, or the completion that they make."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from tests.loopback import (
    ROLE,
    USAGE,
    Close,
    Dribble,
    Event,
    Json,
    Raw,
    Reply,
    Request,
    Reset,
    Sse,
    Status,
    Step,
    chunk,
    completion,
    said,
    usage_chunk,
    usage_of,
)
from tests.transcripts.reading import NOTHING, Word, read_words

WHOLE = {"status", "json", "wire", "header"}  # replies of one document, to either kind of request
PLAIN = {"", "role", "stop", "finish", "usage", "call", "custom"}  # what a completion can have, too


class Scripted(msgspec.Struct):
    """A line of a transcript as a reply: streamed as its events, and plain as the completion that they make."""

    words: list[Word]

    @property
    def is_for_streams(self) -> bool:
        """Only a stream can be so."""
        return not all(word.name in PLAIN | WHOLE for word in self.words)

    def steps(self, request: Request) -> Iterator[Step]:
        return iter(self._reply(is_stream=bool(request.json.get("stream"))).steps(request))

    def _reply(self, *, is_stream: bool) -> Reply:
        headers = {word.argument: str(word.value) for word in self.words if word.name == "header"}
        for word in self.words:
            value = word.value
            if word.name == "status":
                body = b"" if value is NOTHING or isinstance(value, int) else _bytes(value)
                return Status(int(word.argument), body, headers)
            if word.name == "json":
                return Json(value)
            if word.name == "wire":
                ends = [self._event(word) for word in self.words]
                return Raw([value.encode(), *(end for end in ends if isinstance(end, Reset | Close))])
        if not is_stream and not self.is_for_streams:
            return Json(self._completion())
        options = {word.name: word.value for word in self.words}
        events = [event for word in self.words if (event := self._event(word))]
        line_end = b"\r\n" if "crlf" in options else b"\r" if "cr" in options else b"\n"
        stream = Sse(_numbered(events), "nodone" not in options, line_end, options.get("pieces"))
        return Dribble(stream) if "dribble" in options else stream

    def _event(self, word: Word) -> Event | None:
        make = EVENTS.get(word.name)
        return make(word) if make else None

    def _completion(self) -> dict[str, Any]:
        message: dict[str, Any] = {}
        finish, usage = "stop", None
        for word in self.words:
            if word.name == "finish":
                finish = word.argument
            elif word.name == "usage":
                usage = _usage(word)
            elif isinstance(event := self._event(word), dict) and event["choices"]:
                for name, value in event["choices"][0]["delta"].items():
                    message[name] = message[name] + value if message.get(name) and value else value
        reply = completion(None, finish, usage=usage)
        reply["choices"][0]["message"].update(message)
        calls = reply["choices"][0]["message"].get("tool_calls", [])
        reply["choices"][0]["message"]["content"] = message.get("content") or (None if calls else "")
        return reply


def _numbered(events: list[Event]) -> list[Event]:
    """Calls that say no index are numbered as they come."""
    calls = [call for event in events if isinstance(event, dict) for call in _calls(event)]
    for number, call in enumerate(calls):
        call.setdefault("index", number)
    return events


def _calls(event: dict[str, Any]) -> list[Any]:
    choices = event.get("choices") or [{}]
    return [call for call in (choices[0].get("delta") or {}).get("tool_calls") or [] if isinstance(call, dict)]


def _call(word: Word) -> dict[str, Any]:
    """`call:name{"a": 1}`, or `custom:name"input"`: a whole call, with an id of the upstream's."""
    text = word.value if isinstance(word.value, str) else json.dumps(word.value)
    field, member = ("function", "arguments") if word.name == "call" else ("custom", "input")
    id_ = f"up_{word.argument}"
    return {"id": id_, "type": field, field: {"name": word.argument, member: text}}


def _usage(word: Word) -> Any:
    """`usage` is the usual one, `usage:9/2/1` has these counts, and `usage{...}` is sent as it is."""
    if not word.argument:
        return USAGE if word.value is NOTHING else word.value
    if "/" in word.argument:
        return usage_of(*map(int, word.argument.split("/")))
    return word.value


EVENTS: dict[str, Callable[[Word], Event]] = {
    "": lambda word: said(word.value) if isinstance(word.value, str) else chunk(word.value),
    "role": lambda _: ROLE,
    "stop": lambda _: chunk(finish="stop"),
    "finish": lambda word: chunk(finish=word.argument),
    "usage": lambda word: usage_chunk(_usage(word)),
    **dict.fromkeys(("call", "custom"), lambda word: chunk({"tool_calls": [_call(word)]})),
    "chunk": lambda word: chunk(**word.value),
    "event": lambda word: dict(word.value),
    "bytes": lambda word: str(word.value).encode(),
    "reset": lambda _: Reset(),
    "close": lambda _: Close(),
}


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()


def scripted(line: str) -> Scripted:
    return Scripted([*read_words(line)])
