"""Refusals and reasoning: passed on to the client, in messages and deltas, and back to the upstream in the history."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.contract.agent import TOOLS
from tests.loopback import STOP, Json, LoopbackUpstream, Request, Sse, Status, chunk, completion, said, usage_chunk
from tests.loopback.replies import Reply, Step
from tests.raw_client import MESSAGES, RawClient
from tests.schemas import check_stream

THOUGHT = "The user wants 2 + 3. Let me use the tool."


def whole(extras: dict[str, Any], content: str | None, **fields: Any) -> Json:
    value = completion(content, **fields)
    value["choices"][0]["message"] |= extras
    return Json(value)


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
