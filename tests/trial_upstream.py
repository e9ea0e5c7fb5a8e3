"""A provider for trials: it counts to 30, calls tools and counts tokens, apart from what a test makes it do badly."""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from tests.loopback import (
    ROLE,
    UPSTREAM_ID,
    Json,
    Request,
    Sse,
    Status,
    Step,
    chunk,
    completion,
    said,
    usage_chunk,
    usage_of,
)

Body = dict[str, Any]
Test = Callable[[Body], object]
NUMBERS = [f"{number}, " for number in range(1, 31)]
CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Oslo"}'}}
SECRET_WORDS = f"said by {UPSTREAM_ID}"


def never(_body: Body) -> bool:
    return False


def always(_body: Body) -> bool:
    return True


class Provider(msgspec.Struct, frozen=True, kw_only=True):
    """Lists the model `large`, and answers chats."""

    refuses: Test = never
    calls: Test = lambda body: "tools" in body and body["messages"][-1]["role"] != "tool"
    limits: tuple[str, ...] = ("max_tokens", "max_completion_tokens")  # the fields that it obeys
    prompt: Callable[[Body], object] = lambda body: [body["messages"], body.get("tools")]  # what the model sees
    extras: Body = {}  # further fields of a message
    counts: Test = always  # whether the reply has usage

    def steps(self, request: Request) -> Iterable[Step]:
        if request.method == "GET":
            return Json({"object": "list", "data": [{"id": "large"}]}).steps(request)
        body = request.json
        if self.refuses(body):
            return Status(400, b'{"error":{"message":"%b"}}' % SECRET_WORDS.encode()).steps(request)
        calls = bool(self.calls(body))
        limit = min(body.get(name, len(NUMBERS)) for name in ("", *self.limits))
        words = [] if calls else NUMBERS[:limit]
        finish = "tool_calls" if calls else ("length" if limit < len(NUMBERS) else "stop")
        usage = usage_of(len(str(self.prompt(body))) // 4, len(words) or 20) if self.counts(body) else None
        if body.get("stream"):
            asked = (body.get("stream_options") or {}).get("include_usage")
            return self._stream(words, finish, usage if asked else None).steps(request)
        message = {"role": "assistant", "content": "".join(words) or None, **self.extras}
        if calls:
            message["tool_calls"] = [CALL]
        choice = {"index": 0, "message": message, "finish_reason": finish}
        return Json(completion("", choices=[choice], usage=usage)).steps(request)

    def _stream(self, words: list[str], finish: str, usage: Body | None) -> Sse:
        said_first = [chunk({"tool_calls": [{"index": 0, **CALL}]})] if finish == "tool_calls" else []
        extras = [chunk(self.extras)] if self.extras else []
        counted = [usage_chunk(usage)] if usage else []
        return Sse([ROLE, *extras, *said_first, *map(said, words), chunk(finish=finish), *counted])


def chats(requests: list[Request]) -> list[Body]:
    """The bodies of the chat requests among these."""
    return [request.json for request in requests if request.path.endswith("/chat/completions")]
