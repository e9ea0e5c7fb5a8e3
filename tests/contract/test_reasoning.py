"""Refusals and reasoning: passed on to the client, in messages and deltas, and back to the upstream in the history."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.contract.tool_upstream import TOOLS
from tests.loopback import STOP, Json, LoopbackUpstream, Request, Sse, Status, chunk, completion, said, usage_chunk
from tests.loopback.replies import Reply, Step
from tests.raw_client import MESSAGES, RawClient
from tests.schemas import check_completion, check_stream
from tests.service import Service
from tests.service_config import RouteSpec, ServiceSpec
from tests.tokens import count_tokens

THOUGHT = "The user wants 2 + 3. Let me use the tool."
DETAILS = [{"type": "reasoning.encrypted", "data": "c2VhbGVk", "index": 0}]
EXTRAS: dict[str, dict[str, Any]] = {
    "refusal": {"refusal": "I cannot help with that."},
    "reasoning_content": {"reasoning_content": THOUGHT},
    "reasoning": {"reasoning": THOUGHT},
    "reasoning with details": {"reasoning": THOUGHT, "reasoning_details": DETAILS},
    "reasoning under both names": {"reasoning": THOUGHT, "reasoning_content": THOUGHT},
}


def whole(extras: dict[str, Any], content: str | None, **fields: Any) -> Json:
    value = completion(content, **fields)
    value["choices"][0]["message"] |= extras
    return Json(value)


@pytest.mark.parametrize("case", EXTRAS)
def test_a_whole_reply_has_what_the_upstream_said(api: RawClient, upstream: LoopbackUpstream, case: str) -> None:
    """A refusal and reasoning are in the message, in the fields in which the upstream sent them."""
    upstream.script(whole(EXTRAS[case], None))
    reply = api.chat().json
    check_completion(reply)
    message = reply["choices"][0]["message"]
    assert {name: message.get(name) for name in EXTRAS[case]} == EXTRAS[case]
    assert message["content"] == (None if case == "refusal" else "")


@pytest.mark.parametrize("case", EXTRAS)
def test_a_stream_has_what_the_upstream_said(api: RawClient, upstream: LoopbackUpstream, case: str) -> None:
    """A refusal and reasoning are deltas of their own, before the text that follows them."""
    upstream.script(Sse([chunk(EXTRAS[case]), said("So be it."), STOP, usage_chunk()]))
    reply = api.chat(stream=True)
    stream = check_stream(reply.body)
    assert (stream.extras, stream.text) == (EXTRAS[case], "So be it.")
    assert reply.body.index(b'"re') < reply.body.index(b"So be it.")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("case", EXTRAS)
def test_it_is_counted_as_output(api: RawClient, upstream: LoopbackUpstream, case: str, stream: bool) -> None:
    """Where the upstream counts nothing, a refusal and reasoning count once, like the text."""
    reply = whole(EXTRAS[case], "Done.", usage=None)
    upstream.script(Sse([chunk(EXTRAS[case]), said("Done."), STOP]) if stream else reply)
    got = api.chat(stream=stream)
    usage = check_stream(got.body).usage if stream else got.json["usage"]
    text = str(next(iter(EXTRAS[case].values())))
    assert abs(usage["completion_tokens"] - count_tokens(text + "Done.")) <= 1


def test_the_sdk_sees_a_refusal(client: openai.OpenAI, upstream: LoopbackUpstream) -> None:
    """The SDK's stream helper and its `.parse()` report the refusal that the upstream sent."""
    events = [chunk({"refusal": "I cannot "}), chunk({"refusal": "help."}), STOP, usage_chunk()]
    upstream.script(Sse(events), whole({"refusal": "I cannot help."}, None))
    asked: list[Any] = [{"role": "user", "content": "hi"}]
    with client.chat.completions.stream(model="forte", messages=asked) as stream:
        assert stream.get_final_completion().choices[0].message.refusal == "I cannot help."
    parsed = client.chat.completions.parse(model="forte", messages=asked)
    assert parsed.choices[0].message.refusal == "I cannot help."


class ThinkingUpstream:
    """A model that thinks before it calls a tool, and refuses the next turn without its thoughts, as Kimi does."""

    def __init__(self, field: str) -> None:
        self._field = field

    def steps(self, request: Request) -> Iterator[Step]:
        return iter(self._answer(request.json).steps(request))

    def _answer(self, asked: Any) -> Reply:
        calling = [message for message in asked["messages"] if message.get("tool_calls")]
        if any(message.get(self._field) != THOUGHT for message in calling):
            return Status(400, b'{"error":{"message":"reasoning is missing in assistant tool call message"}}')
        if calling:
            return Json(completion("5")) if not asked.get("stream") else Sse([said("5"), STOP, usage_chunk()])
        call = {"id": "functions.add:0", "type": "function", "function": {"name": "calculate", "arguments": "{}"}}
        if not asked.get("stream"):
            return whole({self._field: THOUGHT, "tool_calls": [call]}, None, finish="tool_calls")
        deltas: list[dict[str, Any]] = [{self._field: THOUGHT[:20]}, {self._field: THOUGHT[20:]}]
        deltas.append({"tool_calls": [{"index": 0, **call}]})
        return Sse([*map(chunk, deltas), chunk(finish="tool_calls"), usage_chunk()])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_a_thinking_model_gets_its_thoughts_back(
    api: RawClient, upstream: LoopbackUpstream, field: str, stream: bool
) -> None:
    """A client that echoes the whole message completes a tool turn with a model that insists on its reasoning."""
    upstream.always(ThinkingUpstream(field))
    first = api.chat(tools=TOOLS, stream=stream)
    if stream:
        got = check_stream(first.body)
        [made] = got.calls
        called = {"id": made.id, "type": "function", "function": {"name": made.name, "arguments": made.arguments}}
        message = {"role": "assistant", "content": None, **got.extras, "tool_calls": [called]}
    else:
        message = first.json["choices"][0]["message"]
        called = message["tool_calls"][0]
    answer = {"role": "tool", "tool_call_id": called["id"], "content": "5"}
    second = api.chat(tools=TOOLS, stream=stream, messages=[*MESSAGES, message, answer])
    assert second.status == 200, second.body


@pytest.fixture(scope="module")
def dropping(shared_upstream: LoopbackUpstream) -> Iterator[Service]:
    """A service whose route drops reasoning."""
    routes = {"forte": [RouteSpec("loopback", more_toml='reasoning = "drop"')]}
    with Service(ServiceSpec({"loopback": shared_upstream.base_url}, routes)) as service:
        yield service


@pytest.mark.parametrize("stream", [False, True])
def test_a_route_can_drop_reasoning(dropping: Service, upstream: LoopbackUpstream, stream: bool) -> None:
    """With `reasoning = "drop"` it reaches neither the client nor the upstream; a refusal still does."""
    given = {"reasoning": THOUGHT, "reasoning_content": THOUGHT, "reasoning_details": DETAILS}
    events = [chunk(given), chunk({"refusal": "No."}), said("Hi"), STOP, usage_chunk()]
    upstream.script(Sse(events) if stream else whole({**given, "refusal": "No."}, "Hi"))
    echoed = {"role": "assistant", "content": "Hm.", **given}
    reply = RawClient(dropping.port, dropping.key).chat(stream=stream, messages=[*MESSAGES, echoed, *MESSAGES])
    assert reply.status == 200
    assert b"reasoning" not in reply.body
    assert b"No." in reply.body
    (request,) = upstream.requests
    assert "reasoning" not in json.dumps(request.json)
    assert request.json["messages"][2] == {"role": "assistant", "content": "Hm."}
