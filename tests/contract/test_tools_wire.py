"""Tool calls over bare HTTP: quirks, forwarding, charges, and broken replies."""

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from tests.contract.tool_upstream import TOOLS
from tests.loopback import USAGE, Json, LoopbackUpstream, Reset, Sse, chunk, completion, said, usage_chunk
from tests.raw_client import MESSAGES, RawClient, Reply
from tests.schemas import Called, check_broken_stream, check_completion, check_stream, completed_calls
from tests.service_config import CHARACTER
from tests.tokens import count_tokens

OSLO, ROME = '{"city":"Oslo"}', '{"city":"Rome {\\"é\\"}"}'
ROLE = chunk({"role": "assistant", "content": None})
END = (chunk(finish="tool_calls"), usage_chunk())
FORTE_INPUT, FORTE_OUTPUT = Decimal("1.07"), Decimal("3.45")
MILLION = 1_000_000


def part(index: Any = 0, call_id: Any = None, name: Any = None, arguments: Any = None) -> dict[str, Any]:
    return {"index": index, "id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def calling(*parts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return chunk({"tool_calls": list(parts), **fields})


def streamed(*events: dict[str, Any]) -> Sse:
    return Sse([ROLE, *events, *END])


def whole(*calls: dict[str, Any], content: str | None = None, finish: str | None = "tool_calls", **fields: Any) -> Json:
    reply = completion(content, finish, **fields)
    reply["choices"][0]["message"]["tool_calls"] = list(calls)
    return Json(reply)


def ask(api: RawClient, *, stream: bool, **fields: Any) -> Reply:
    reply = api.chat(tools=TOOLS, stream=stream, **fields)
    assert reply.status == 200, reply.body
    return reply


def calls_in(reply: Reply, *, stream: bool) -> tuple[Called, ...]:
    if stream:
        return check_stream(reply.body).calls
    check_completion(reply.json)
    return completed_calls(reply.json)


LOOK = "get_weather"
FIRST, SECOND = part(0, "x1", LOOK, OSLO), part(1, "x2", LOOK, ROME)
QUIRKS: dict[str, Sse] = {
    "as it should be": streamed(calling(FIRST), calling(SECOND)),
    "both in one chunk": streamed(calling(FIRST, SECOND)),
    "all labelled 0": streamed(calling(FIRST), calling({**SECOND, "index": 0})),
    "all labelled 0 in one chunk": streamed(calling(FIRST, {**SECOND, "index": 0})),
    "labels as strings": streamed(calling({**FIRST, "index": "0"}), calling({**SECOND, "index": "1"})),
    "no labels": streamed(calling({**FIRST, "index": None}, {**SECOND, "index": None})),
    "labels that begin at 1": streamed(calling({**FIRST, "index": 1}), calling({**SECOND, "index": 2})),
    "no ids": streamed(calling({**FIRST, "id": None}), calling({**SECOND, "id": None})),
    "empty ids, all labelled 0": streamed(calling({**FIRST, "id": ""}), calling({**SECOND, "id": "", "index": 0})),
    "one id for all": streamed(calling(FIRST, {**SECOND, "id": "x1", "index": 0})),
    "arguments as objects": streamed(
        calling(part(0, "x1", LOOK, json.loads(OSLO)), part(0, "x2", LOOK, json.loads(ROME)))
    ),
    "name in pieces": streamed(
        calling(part(0, "x1", "get_")),
        calling(part(0, None, "weather")),
        calling(part(0, "", "", OSLO)),
        calling(SECOND),
    ),
    "id and name on every part": streamed(
        *(calling(part(0, "x1", LOOK, piece)) for piece in OSLO),
        *(calling(part(1, "x2", LOOK, piece)) for piece in ROME),
    ),
    "parts in turns": streamed(
        calling(part(0, "x1", LOOK, OSLO[:4]), part(1, "x2", LOOK, ROME[:9])),
        calling(part(1, arguments=ROME[9:])),
        calling(part(0, arguments=OSLO[4:])),
    ),
    "finish reason beside a call": Sse([ROLE, calling(FIRST), chunk({"tool_calls": [SECOND]}, "stop"), END[1]]),
    "one byte at a time": Sse([ROLE, calling(FIRST), calling(SECOND), *END], piece_bytes=1),
    "no role, no [DONE]": Sse([calling(FIRST, SECOND), *END], done=False),
}


@pytest.mark.parametrize("quirk", QUIRKS)
def test_quirk_of_calls_is_normalised(api: RawClient, upstream: LoopbackUpstream, quirk: str) -> None:
    """However odd the upstream's calls, the client gets both of them in the documented form."""
    upstream.script(QUIRKS[quirk])
    stream = check_stream(ask(api, stream=True).body)
    assert [(call.name, json.loads(call.arguments)) for call in stream.calls] == [
        (LOOK, json.loads(OSLO)),
        (LOOK, json.loads(ROME)),
    ]
    assert stream.text == ""
    assert stream.usage["completion_tokens"] == USAGE["completion_tokens"]


@pytest.mark.parametrize("stream", [False, True])
def test_legacy_function_call(api: RawClient, upstream: LoopbackUpstream, stream: bool) -> None:
    """A legacy `function_call` of the upstream becomes a tool call."""
    called = {"name": LOOK, "arguments": OSLO}
    reply = completion(None, "function_call")
    reply["choices"][0]["message"]["function_call"] = called
    events = [chunk({"function_call": {"name": LOOK}}), chunk({"function_call": {"arguments": OSLO}})]
    upstream.script(Sse([ROLE, *events, chunk(finish="function_call"), END[1]]) if stream else Json(reply))
    (call,) = calls_in(ask(api, stream=stream), stream=stream)
    assert (call.name, call.arguments) == (LOOK, OSLO)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("arguments", ["", None, {}], ids=str)
def test_call_without_arguments(api: RawClient, upstream: LoopbackUpstream, arguments: Any, stream: bool) -> None:
    """A call without arguments has an empty object as arguments."""
    idle = part(0, "x1", "idle", arguments)
    upstream.script(streamed(calling(idle), calling(SECOND)) if stream else whole(idle, SECOND))
    calls = calls_in(ask(api, stream=stream), stream=stream)
    assert [(call.name, call.arguments) for call in calls] == [("idle", "{}"), (LOOK, ROME)]


@pytest.mark.parametrize("stream", [False, True])
def test_content_and_calls_are_both_kept(api: RawClient, upstream: LoopbackUpstream, stream: bool) -> None:
    """Text before calls is kept."""
    events = [said("Let me "), calling(FIRST, content="look.")]
    upstream.script(streamed(*events) if stream else whole(FIRST, content="Let me look."))
    reply = ask(api, stream=stream)
    assert len(calls_in(reply, stream=stream)) == 1
    text = check_stream(reply.body).text if stream else reply.json["choices"][0]["message"]["content"]
    assert text == "Let me look."


@pytest.mark.parametrize("content", [None, ""])
def test_content_is_null_with_calls_only(api: RawClient, upstream: LoopbackUpstream, content: Any) -> None:
    """A plain reply with only calls has null content, even if the upstream's is empty."""
    upstream.script(whole(FIRST, content=content))
    assert ask(api, stream=False).json["choices"][0]["message"]["content"] is None


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("finish", ["tool_calls", "stop", "function_call", "tool_use", "eos"])
def test_calls_set_the_finish_reason(api: RawClient, upstream: LoopbackUpstream, finish: str, stream: bool) -> None:
    """A reply that ended with calls has the finish reason `tool_calls`, whatever the upstream called it."""
    upstream.script(Sse([ROLE, calling(FIRST), chunk(finish=finish)]) if stream else whole(FIRST, finish=finish))
    reply = ask(api, stream=stream)
    assert len(calls_in(reply, stream=stream)) == 1  # the schemas hold the finish reason to it


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("finish", ["length", "content_filter"])
def test_cut_calls_say_that_they_were_cut(
    api: RawClient, upstream: LoopbackUpstream, finish: str, stream: bool
) -> None:
    """A reply that was cut while it made a call keeps the reason of the cut: half a call is not a call."""
    half = part(0, "x1", LOOK, '{"city": "Os')
    upstream.script(Sse([ROLE, calling(half), chunk(finish=finish)]) if stream else whole(half, finish=finish))
    reply = ask(api, stream=stream)
    assert len(calls_in(reply, stream=stream)) == 1
    told = check_stream(reply.body).finish_reason if stream else reply.json["choices"][0]["finish_reason"]
    assert told == finish


@pytest.mark.parametrize("stream", [False, True])
def test_tool_calls_without_calls_becomes_stop(api: RawClient, upstream: LoopbackUpstream, stream: bool) -> None:
    """An upstream that finishes with `tool_calls` but made none has finished with `stop`."""
    upstream.script(Sse([ROLE, said("No."), *END]) if stream else Json(completion("No.", "tool_calls")))
    reply = ask(api, stream=stream)
    assert calls_in(reply, stream=stream) == ()
    told = check_stream(reply.body).finish_reason if stream else reply.json["choices"][0]["finish_reason"]
    assert told == "stop"


def test_tools_reach_the_upstream_byte_for_byte(api: RawClient, upstream: LoopbackUpstream) -> None:
    """Definitions and choice are forwarded byte for byte; the character layer comes before the messages."""
    tools = b'[ {"function":{ "parameters":{"maximum":1.50e1,"x":"\\u00e9"},  "name":"look"},"type":"function"} ]'
    choice = b'{ "function":{"name":"look"} , "type":"function"}'
    messages = json.dumps(MESSAGES).encode()
    body = b'{"tools":%b,"tool_choice":%b,"parallel_tool_calls":false,"messages":%b}' % (tools, choice, messages)
    assert api.post(body).status == 200
    (request,) = upstream.requests
    assert b'"tools":' + tools in request.body
    assert b'"tool_choice":' + choice in request.body
    assert request.json["parallel_tool_calls"] is False
    assert request.json["messages"] == [{"role": "system", "content": CHARACTER}, *MESSAGES]


def test_megabyte_of_schema_is_forwarded(api: RawClient, upstream: LoopbackUpstream) -> None:
    """A recursive schema of a megabyte is forwarded for the upstream to judge."""
    properties = {f"field_{n}": {"$ref": "#", "description": "what it is for, in a few words"} for n in range(14_000)}
    tools = [
        {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": properties}}}
    ]
    assert len(json.dumps(tools)) > MILLION
    assert api.chat(tools=tools).status == 200
    assert upstream.requests[0].json["tools"] == tools


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a bad name": ({"tools": [{"type": "function", "function": {"name": "look up"}}]}, "tools[0].function.name"),
    "129 tools": ({"tools": [{"type": "function", "function": {"name": f"f{n}"}} for n in range(129)]}, "129"),
    "a hosted tool": ({"tools": [*TOOLS, {"type": "web_search"}]}, "tools[2].type"),
    "a choice of nothing": (
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "leap"}}},
        "tool_choice",
    ),
    "a choice that is a list": (
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": [LOOK]}}},
        "tool_choice",
    ),
    "an answer to nothing": (
        {"messages": [*MESSAGES, {"role": "tool", "tool_call_id": "call_lost", "content": "4"}]},
        "call_lost",
    ),
    "a call left open": (
        {"messages": [*MESSAGES, {"role": "assistant", "tool_calls": [part(0, "call_open", LOOK, OSLO)]}, *MESSAGES]},
        "call_open",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_tools_are_400(api: RawClient, upstream: LoopbackUpstream, case: str) -> None:
    """Invalid tools are a 400 that names the place or the id, is not to be retried, and reaches no upstream."""
    fields, place = BAD[case]
    reply = api.chat(**fields)
    assert place in reply.error(400)
    assert reply.headers["x-should-retry"] == "false"
    assert upstream.requests == []


@pytest.mark.parametrize("field", ["tool_calls", "tool_call_id"])
def test_nulls_in_the_history_are_accepted(api: RawClient, upstream: LoopbackUpstream, field: str) -> None:
    """Clients that dump every field send nulls on calls and results; they are served."""
    called = {field: None, "role": "assistant", "content": None, "tool_calls": [part(0, "x1", LOOK, OSLO)]}
    answered = {field: None, "role": "tool", "tool_call_id": "x1", "content": "4"}
    assert api.chat(messages=[*MESSAGES, called, answered]).status == 200


Spent = Callable[[], dict[str, Any]]


@pytest.fixture
def spent(api: RawClient) -> Spent:
    """The account's totals so far."""

    def read() -> dict[str, Any]:
        totals: dict[str, Any] = api.get("/v1/usage").json["totals"]
        return totals

    return read


@pytest.mark.parametrize("stream", [False, True])
def test_calls_are_counted_as_output(api: RawClient, upstream: LoopbackUpstream, spent: Spent, stream: bool) -> None:
    """Without upstream usage, names and arguments are counted as output and definitions as prompt."""
    uncounted = Sse([ROLE, calling(FIRST), calling(SECOND), chunk(finish="stop")])
    upstream.script(uncounted if stream else whole(FIRST, SECOND, usage=None), Json(completion("No.", usage=None)))
    before = spent()
    reply = ask(api, stream=stream)
    usage = check_stream(reply.body).usage if stream else reply.json["usage"]
    after = spent()
    assert usage["completion_tokens"] >= count_tokens(LOOK + OSLO + LOOK + ROME)
    assert after["completion_tokens"] - before["completion_tokens"] == usage["completion_tokens"]
    charge = (usage["prompt_tokens"] * FORTE_INPUT + usage["completion_tokens"] * FORTE_OUTPUT) / MILLION
    assert Decimal(after["cost"]) - Decimal(before["cost"]) == charge
    without_tools = api.chat().json["usage"]["prompt_tokens"]
    assert usage["prompt_tokens"] - without_tools >= count_tokens(json.dumps(TOOLS))


def test_stream_that_breaks_within_a_call(api: RawClient, upstream: LoopbackUpstream, spent: Spent) -> None:
    """Half a call ends in an error event without a finish reason, and what was delivered of it is charged."""
    upstream.script(Sse([ROLE, calling(part(0, "x1", LOOK, OSLO[:9])), Reset()]))
    before = spent()
    broken = check_broken_stream(ask(api, stream=True).body)
    assert [(call.name, call.arguments) for call in broken.calls] == [(LOOK, OSLO[:9])]
    delivered_tokens = spent()["completion_tokens"] - before["completion_tokens"]
    assert delivered_tokens == count_tokens(LOOK + OSLO[:9])


def test_plain_reply_that_breaks_within_a_call(api: RawClient, upstream: LoopbackUpstream, spent: Spent) -> None:
    """A plain reply with half a call is a 502 without a charge."""
    upstream.script(Sse([ROLE, calling(part(0, "x1", LOOK, OSLO[:9])), Reset()]))
    before = spent()
    api.chat(tools=TOOLS).error(502, "api_error")
    assert spent()["cost"] == before["cost"]


@pytest.mark.parametrize("stream", [False, True])
def test_calls_without_tools_are_not_shown(api: RawClient, upstream: LoopbackUpstream, stream: bool) -> None:
    """Without tools in the request, calls that the upstream makes up are not shown."""
    upstream.script(Sse([ROLE, said("Hm."), calling(FIRST), *END]) if stream else whole(FIRST, content="Hm."))
    reply = api.chat(stream=stream)
    assert calls_in(reply, stream=stream) == ()
    assert b"Hm." in reply.body
