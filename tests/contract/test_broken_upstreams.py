"""A failing upstream never looks like success: 502 before the first word, an error event after it."""

import json

import openai
import pytest

from tests.loopback import (
    ROLE,
    Close,
    Cut,
    Event,
    Json,
    LoopbackUpstream,
    Raw,
    Reply,
    Reset,
    Sse,
    Status,
    chunk,
    completion,
    http_head,
    said,
    usage_chunk,
)
from tests.raw_client import RawClient
from tests.schemas import check_broken_stream

SECRET = "upstream-secret-74"
ERROR = {"error": {"message": SECRET, "type": "server_error", "code": 500}}
HTML = b"<html><body>upstream-secret-74</body></html>"
WHOLE = json.dumps(completion("a long enough answer")).encode()

BAD_REPLIES: dict[str, Reply] = {
    "error body": Json(ERROR),
    "error as a string": Json({"error": SECRET}),
    "HTML": Status(200, HTML, {"content-type": "text/html"}),
    "HTML called JSON": Status(200, HTML),
    "empty": Status(200),
    "truncated JSON": Status(200, WHOLE[:-9]),
    "body cut short": Cut(Status(200, WHOLE), 40),
    "body reset": Cut(Status(200, WHOLE), 40, Reset()),
    "JSON of another shape": Json([1, 2]),
    "no choices": Json({"object": "chat.completion", "choices": []}),
    "choices null": Json({"object": "chat.completion", "choices": None}),
    "choice without a message": Json({"choices": [{"index": 0, "finish_reason": "stop"}]}),
    "message of another shape": Json({"choices": [{"index": 0, "message": SECRET}]}),
    "invalid UTF-8": Status(200, WHOLE.replace(b"answer", b"\xff\xfe")),
    "no HTTP at all": Raw([b"SSH-2.0-OpenSSH_9.6\r\n", Close()]),
    "closed without a word": Raw([Close()]),
    "reset without a word": Raw([Reset()]),
    "head cut short": Raw([b"HTTP/1.1 200 OK\r\ncontent-le", Close()]),
    "redirect": Status(307, headers={"location": "http://127.0.0.1:9/v1/chat/completions"}),
    "status 500": Status(500, b"upstream-secret-74"),
    "status 401": Status(401, json.dumps(ERROR).encode()),
    "status 403": Status(403, json.dumps(ERROR).encode()),
    "status 404": Status(404, json.dumps(ERROR).encode()),
    "status 204": Status(204),
    "status 999": Status(999, b"upstream-secret-74"),
}
BAD_STREAMS: dict[str, Reply] = {
    "error first": Sse([ERROR]),
    "error after the role": Sse([ROLE, ERROR]),
    "nothing": Sse([], done=False),
    "only [DONE]": Sse([]),
    "role and [DONE]": Sse([ROLE]),
    "only comments": Sse([b": hello\n\n"], done=False),
    "no JSON": Sse([b"data: upstream-secret-74\n\n"]),
    "HTML as a stream": Sse([HTML], done=False),
    "cut after the role": Sse([ROLE, Close()]),
    "reset after the role": Sse([ROLE, Reset()]),
    "cut within the first event": Sse([b'data: {"choices": [{"del', Close()]),
    "usage and no answer": Sse([usage_chunk()]),
}
LATE_FAILURES: dict[str, list[Event]] = {
    "error event": [ERROR],
    "error as a string": [{"error": SECRET}],
    "closed": [Close()],
    "reset": [Reset()],
    "closed within an event": [b'data: {"choices": [{"delta": {"content": "wo', Close()],
    "end without a finish reason": [],
    "garbage": [b"data: {upstream-secret-74\n\n"],
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", BAD_REPLIES)
def test_bad_reply_is_502(api: RawClient, upstream: LoopbackUpstream, fault: str, stream: bool) -> None:
    """A reply that is not a completion is a 502 without the upstream's text, in either mode."""
    upstream.always(BAD_REPLIES[fault])
    reply = api.chat(stream=stream)
    reply.error(502, "api_error")
    assert SECRET.encode() not in reply.body
    assert upstream.base_url.encode() not in reply.body


@pytest.mark.parametrize("fault", BAD_STREAMS)
def test_stream_that_fails_before_content_is_502(api: RawClient, upstream: LoopbackUpstream, fault: str) -> None:
    """No 200 is sent before the upstream has begun to answer."""
    upstream.always(BAD_STREAMS[fault])
    reply = api.chat(stream=True)
    reply.error(502, "api_error")
    assert SECRET.encode() not in reply.body


@pytest.mark.parametrize("done", [True, False])
@pytest.mark.parametrize("fault", LATE_FAILURES)
def test_failure_after_content_is_an_error_event(
    api: RawClient, upstream: LoopbackUpstream, fault: str, done: bool
) -> None:
    """A stream that breaks keeps the text so far, ends with an error event and has no [DONE]."""
    upstream.script(Sse([ROLE, said("half "), said("a word"), *LATE_FAILURES[fault]], done=done))
    reply = api.chat(stream=True)
    assert reply.status == 200
    broken = check_broken_stream(reply.body)
    assert broken.text == "half a word"
    assert SECRET.encode() not in reply.body


@pytest.mark.parametrize("fault", LATE_FAILURES)
def test_error_event_follows_a_blank_line(api: RawClient, upstream: LoopbackUpstream, fault: str) -> None:
    """A blank line separates the error event from whatever was sent before."""
    upstream.script(Sse([ROLE, said("half a word"), *LATE_FAILURES[fault]]))
    assert b'\n\n\ndata: {"error":' in api.chat(stream=True).body


@pytest.mark.parametrize("fault", LATE_FAILURES)
def test_sdk_raises_on_a_broken_stream(client: openai.OpenAI, upstream: LoopbackUpstream, fault: str) -> None:
    """The SDK's caller gets the text so far and then an APIError."""
    upstream.script(Sse([ROLE, said("half a word"), *LATE_FAILURES[fault]]))
    heard: list[str] = []
    with (
        client.chat.completions.create(
            model="forte", messages=[{"role": "user", "content": "hi"}], stream=True
        ) as stream,
        pytest.raises(openai.APIError) as caught,
    ):
        heard.extend(choice.delta.content or "" for part in stream for choice in part.choices)
    assert "".join(heard) == "half a word"
    assert caught.value.type == "api_error"


async def test_async_sdk_raises_on_a_broken_stream(
    async_client: openai.AsyncOpenAI, upstream: LoopbackUpstream
) -> None:
    """The asynchronous SDK raises as well."""
    upstream.script(Sse([ROLE, said("half a word"), Reset()]))
    stream = await async_client.chat.completions.create(
        model="forte", messages=[{"role": "user", "content": "hi"}], stream=True
    )
    with pytest.raises(openai.APIError):
        [chunk async for chunk in stream]


def test_failure_after_the_finish_reason_is_harmless(api: RawClient, upstream: LoopbackUpstream) -> None:
    """An upstream that fails after its finish reason has answered completely."""
    upstream.script(Sse([ROLE, said("all of it"), chunk(finish="stop"), Reset()]))
    assert api.chat(stream=True).body.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("status", [400, 413, 422])
@pytest.mark.parametrize("stream", [False, True])
def test_refusal_of_the_request_is_400(api: RawClient, upstream: LoopbackUpstream, status: int, stream: bool) -> None:
    """An upstream that refuses the request gives a 400 without the upstream's text, not to be retried."""
    upstream.always(Status(status, json.dumps(ERROR).encode()))
    reply = api.chat(stream=stream)
    reply.error(400)
    assert SECRET.encode() not in reply.body
    assert reply.headers["x-should-retry"] == "false"


def test_endless_line_is_cut_off(api: RawClient, upstream: LoopbackUpstream) -> None:
    """An event without end does not fill the memory: the stream fails like any other."""
    head = http_head(200, {"content-type": "text/event-stream", "connection": "close"})
    upstream.script(Raw([head, b"data: ", *[b"x" * 1_000_000] * 80, Close()]))
    api.chat(stream=True).error(502, "api_error")
