"""However odd the upstream's stream, the client gets the documented order and nothing of the upstream's own."""

import json
from typing import Any

import openai
import pytest

from tests.loopback import (
    ROLE,
    STOP,
    UPSTREAM_MARKS,
    USAGE,
    Cut,
    Dribble,
    Json,
    LoopbackUpstream,
    Raw,
    Sse,
    chunk,
    completion,
    http_head,
    said,
    sse_event,
    usage_chunk,
)
from tests.loopback import Reply as Scripted
from tests.raw_client import RawClient, Reply
from tests.schemas import Stream, check_completion, check_stream

TEXT = "Ein Lied: 音楽 🎼 für zwei."
USAGE_CHUNK = usage_chunk()
OTHER_COUNTS = {"prompt_tokens": 11, "completion_tokens": 2, "total_tokens": 13}
PARTS = [{"type": "text", "text": "Ein Lied: "}, {"type": "text", "text": "音楽 🎼 für zwei."}]


def without(value: dict[str, Any], name: str) -> dict[str, Any]:
    return {member: kept for member, kept in value.items() if member != name}


def split_data(value: dict[str, Any]) -> bytes:
    """One event whose JSON is spread over several `data:` lines."""
    return b"".join(b"data: %b\n" % line for line in json.dumps(value, indent=1).encode().split(b"\n")) + b"\n"


def whole(*events: dict[str, Any] | bytes) -> Sse:
    """A stream with TEXT in these events that ends well."""
    return Sse([ROLE, *events, STOP, USAGE_CHUNK])


def body_of(reply: Sse, line_end: bytes = b"\n") -> bytes:
    """The events of a stream without HTTP chunks."""
    given = [sse_event(event, line_end) if isinstance(event, dict) else event for event in reply.events]
    assert all(isinstance(event, bytes) for event in given)
    return b"".join(event for event in given if isinstance(event, bytes))


THOUGHT = {"type": "thinking", "thinking": [{"type": "text", "text": "a thought"}]}
GOOD = whole(said(TEXT[:9]), said(TEXT[9:]))
UNFRAMED = http_head(200, {"content-type": "text/event-stream", "connection": "close"})
QUIRKS: dict[str, Scripted] = {
    "role and content in one chunk": Sse([chunk({"role": "assistant", "content": TEXT}), STOP, USAGE_CHUNK]),
    "no role at all": Sse([said(TEXT), STOP, USAGE_CHUNK]),
    "finish reason together with content": Sse(
        [ROLE, said(TEXT[:4]), chunk({"content": TEXT[4:]}, "stop"), USAGE_CHUNK]
    ),
    "all in one chunk": Sse([chunk({"role": "assistant", "content": TEXT}, "stop", usage=USAGE)]),
    "usage together with the finish reason": Sse([ROLE, said(TEXT), chunk(finish="stop", usage=USAGE)]),
    "finish reason twice": whole(said(TEXT), STOP),
    "no [DONE]": Sse([ROLE, said(TEXT), STOP, USAGE_CHUNK], done=False),
    "comments": whole(b": OPENROUTER PROCESSING\n\n", said(TEXT[:5]), b":\n: x\n\n", said(TEXT[5:])),
    "CRLF": Sse([ROLE, said(TEXT), STOP, USAGE_CHUNK], line_end=b"\r\n"),
    "bare CR": Sse([ROLE, said(TEXT), STOP, USAGE_CHUNK], line_end=b"\r"),
    "CRLF a byte at a time": Sse([ROLE, said(TEXT), STOP, USAGE_CHUNK], line_end=b"\r\n", piece_bytes=1),
    "several data lines in an event": whole(split_data(said(TEXT))),
    "no space after the colon": whole(sse_event(said(TEXT)).replace(b"data: ", b"data:")),
    "byte order mark": Sse([b"\xef\xbb\xbf", ROLE, said(TEXT), STOP, USAGE_CHUNK]),
    "first chunk without choices": Sse([chunk(choices=[]), ROLE, said(TEXT), STOP, USAGE_CHUNK]),
    "choices null": whole(chunk(choices=None), said(TEXT), chunk(choices=None)),
    "choices absent": whole(without(chunk(), "choices"), said(TEXT), without(chunk(), "choices")),
    "delta null or absent": whole(chunk(choices=[{"index": 0, "delta": None}, {"index": 0}]), said(TEXT)),
    "empty role": Sse([chunk({"role": ""}), chunk({"role": "", "content": TEXT}), STOP, USAGE_CHUNK]),
    "role on every delta": whole(*(chunk({"role": "assistant", "content": piece}) for piece in TEXT)),
    "content null and empty": whole(chunk({"content": None}), said(""), said(TEXT), chunk({"content": None})),
    "content as parts": whole(chunk({"content": PARTS})),
    "usage empty or null on every chunk": whole({**said(TEXT[:3]), "usage": {}}, {**said(TEXT[3:]), "usage": None}),
    "usage on every chunk, cumulative": whole(
        {**said(TEXT[:3]), "usage": OTHER_COUNTS}, {**said(TEXT[3:]), "usage": OTHER_COUNTS}
    ),
    "reasoning before the answer": whole(
        chunk({"reasoning_content": "a thought"}), chunk({"reasoning": "a thought"}), said(TEXT)
    ),
    "reasoning as a part": whole(chunk({"content": [THOUGHT]}), said(TEXT)),
    "usage in the choice": Sse([ROLE, said(TEXT), chunk(choices=[{"finish_reason": "stop", "usage": USAGE}])]),
    "usage in a field of Groq": Sse([ROLE, said(TEXT), chunk(finish="stop", x_groq={"id": "x", "usage": USAGE})]),
    "a choice without a delta": whole(said(TEXT), chunk(choices=[{"index": 0, "content_filter_results": {}}])),
    "unknown members everywhere": whole({**said(TEXT), "x_vendor": {"upstream-model-72": 1}, "error": None}),
    "id, retry and event fields": whole(b"id: 7\nretry: 1\nevent: message\n" + sse_event(said(TEXT))),
    "empty data as keepalive": whole(b"data:\n\n", b"data: \n\n", said(TEXT), b"data\n\n"),
    "other choices besides the first": whole(chunk(choices=[{"index": 1, "delta": {"content": "no"}}]), said(TEXT)),
    "numbers where nobody looks": whole({**said(TEXT), "created": 1.5, "id": 7, "model": None}),
    "one byte at a time": Sse(GOOD.events, piece_bytes=1),
    "two bytes at a time": Sse(GOOD.events, piece_bytes=2),
    "three bytes at a time": Sse(GOOD.events, piece_bytes=3),
    "seven bytes at a time": Sse(GOOD.events, piece_bytes=7),
    "head and body dribbled": Dribble(GOOD),
    "no framing, the close ends it": Cut(Raw([UNFRAMED, body_of(GOOD)]), 1_000_000),
    "one JSON body": Json(completion(TEXT)),
    "one JSON body with content as parts": Json(completion(PARTS)),
}


@pytest.mark.parametrize("quirk", QUIRKS)
def test_quirk_is_normalised(api: RawClient, upstream: LoopbackUpstream, quirk: str) -> None:
    """Whatever the quirk, the client gets the whole text, the usage and the documented order."""
    upstream.script(QUIRKS[quirk])
    reply = api.chat(stream=True)
    stream = _sound_stream(reply)
    assert stream.text == TEXT
    assert stream.finish_reason == "stop"
    counts = (stream.usage["prompt_tokens"], stream.usage["completion_tokens"])
    assert counts == (USAGE["prompt_tokens"], USAGE["completion_tokens"])


@pytest.mark.parametrize("quirk", QUIRKS)
def test_sdk_reads_the_normalised_stream(client: openai.OpenAI, upstream: LoopbackUpstream, quirk: str) -> None:
    """The OpenAI SDK reads every one of these streams to its end."""
    upstream.script(QUIRKS[quirk])
    with client.chat.completions.create(
        model="forte", messages=[{"role": "user", "content": "hi"}], stream=True
    ) as stream:
        assert "".join(choice.delta.content or "" for chunk in stream for choice in chunk.choices) == TEXT


@pytest.mark.parametrize("cut", range(1, len(TEXT.encode()) - 1))
def test_characters_may_be_split_anywhere(api: RawClient, upstream: LoopbackUpstream, cut: int) -> None:
    """A read that ends within a character loses nothing, at any byte."""
    event = sse_event(said(TEXT))
    place = event.index(TEXT.encode()) + cut
    upstream.script(whole(event[:place], event[place:]))
    assert _sound_stream(api.chat(stream=True)).text == TEXT


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens": None}, {"prompt_tokens": "11"}, {"total_tokens": 18}])
def test_missing_usage_is_counted_locally(api: RawClient, upstream: LoopbackUpstream, usage: Any) -> None:
    """Without readable usage of the upstream, the usage chunk has the local count."""
    upstream.script(Sse([ROLE, said(TEXT), chunk(finish="stop", usage=usage)]))
    counted = _sound_stream(api.chat(stream=True)).usage
    assert counted["prompt_tokens"] > 0
    assert counted["completion_tokens"] > 0


def test_zero_usage_is_believed(api: RawClient, upstream: LoopbackUpstream) -> None:
    """An upstream that counts no tokens is believed."""
    none = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    upstream.script(Sse([ROLE, said(TEXT), chunk(finish="stop", usage=none)]))
    assert _sound_stream(api.chat(stream=True)).usage["total_tokens"] == 0


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize(
    ("said_reason", "told_reason"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("content_filter", "content_filter"),
        ("eos", "stop"),
        ("end_turn", "stop"),
        ("MAX_TOKENS", "stop"),
    ],
)
def test_finish_reasons(
    api: RawClient, upstream: LoopbackUpstream, said_reason: str, told_reason: str, streamed: bool
) -> None:
    """The documented finish reasons are passed on; a vendor's own becomes `stop`."""
    upstream.script(Sse([ROLE, said(TEXT), chunk(finish=said_reason)]) if streamed else _whole_with(said_reason))
    reply = api.chat(stream=streamed)
    if streamed:
        assert _sound_stream(reply).finish_reason == told_reason
    else:
        check_completion(reply.json)
        assert reply.json["choices"][0]["finish_reason"] == told_reason


@pytest.mark.parametrize(("content", "told"), [(None, ""), ("", ""), (PARTS, TEXT), ([], "")])
def test_plain_content_is_always_a_string(api: RawClient, upstream: LoopbackUpstream, content: Any, told: str) -> None:
    """The content of a plain reply is a string, even if the upstream's is null, empty or an array of parts."""
    upstream.script(Json(completion(content)))
    reply = api.chat()
    check_completion(reply.json)
    assert reply.json["choices"][0]["message"]["content"] == told


def test_empty_answer_is_complete(api: RawClient, upstream: LoopbackUpstream) -> None:
    """A stream that finishes without text is complete and has no content chunk."""
    upstream.script(Sse([ROLE, STOP, USAGE_CHUNK]))
    assert _sound_stream(api.chat(stream=True)).pieces == ()


def test_plain_reply_without_usage_is_counted_locally(api: RawClient, upstream: LoopbackUpstream) -> None:
    """A plain reply has usage even if the upstream sent none."""
    upstream.script(Json(without(completion(TEXT), "usage")))
    usage = api.chat().json["usage"]
    assert usage["prompt_tokens"] > 0
    assert usage["completion_tokens"] > 0


def _whole_with(reason: str) -> Json:
    return Json(completion(TEXT, reason))


def _sound_stream(reply: Reply) -> Stream:
    assert reply.status == 200, reply.body
    assert reply.is_complete
    assert not [mark for mark in UPSTREAM_MARKS if mark.encode() in reply.body]
    return check_stream(reply.body)
