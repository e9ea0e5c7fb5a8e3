"""The helpers of the OpenAI SDK that parse: `.parse()` and `.stream()`, with a schema and with tools."""

import json
from typing import Any

import openai
import pytest
from openai import pydantic_function_tool
from pydantic import BaseModel

from tests.loopback import ROLE, ByMode, Json, LoopbackUpstream, Sse, chunk, completion, said, usage_chunk

REPORT = '{"city":"Oslo","degrees":4}'
ASKED: list[Any] = [{"role": "user", "content": "Which is warmer, Oslo or Rome?"}]
CUT_ERRORS: dict[str, type[Exception]] = {
    "length": openai.LengthFinishReasonError,
    "content_filter": openai.ContentFilterFinishReasonError,
}


class Report(BaseModel):
    """A structured answer, and a tool's arguments."""

    city: str
    degrees: int


TOOLS = [pydantic_function_tool(Report)]


def says(text: str, finish: str = "stop") -> ByMode:
    events = [ROLE, said(text[:9]), said(text[9:]), chunk(finish=finish), usage_chunk()]
    return ByMode(Sse(events), Json(completion(text, finish)))


def calls(*arguments: str, finish: str = "tool_calls") -> ByMode:
    """All calls in one chunk."""
    made = [
        {"index": place, "id": f"up{place}", "type": "function", "function": {"name": "Report", "arguments": text}}
        for place, text in enumerate(arguments)
    ]
    reply = completion(None, finish)
    reply["choices"][0]["message"]["tool_calls"] = made
    return ByMode(Sse([ROLE, chunk({"tool_calls": made}), chunk(finish=finish), usage_chunk()]), Json(reply))


def test_parse_fills_the_schema(client: openai.OpenAI, upstream: LoopbackUpstream) -> None:
    """`.parse()` sends the schema upstream and returns an object of its class."""
    upstream.script(says(REPORT))
    reply = client.chat.completions.parse(model="auto", messages=ASKED, response_format=Report)
    assert reply.choices[0].message.parsed == Report(city="Oslo", degrees=4)
    assert upstream.requests[0].json["response_format"]["json_schema"]["name"] == "Report"


def test_stream_fills_the_schema(client: openai.OpenAI, upstream: LoopbackUpstream) -> None:
    """`.stream()` parses the whole text of a stream, and has its usage."""
    upstream.script(says(REPORT))
    with client.chat.completions.stream(model="auto", messages=ASKED, response_format=Report) as stream:
        parsed = [event.parsed for event in stream if event.type == "content.done"]
        usage = stream.get_final_completion().usage
    assert parsed == [Report(city="Oslo", degrees=4)]
    assert usage is not None
    assert usage.total_tokens == 18


@pytest.mark.parametrize("finish", CUT_ERRORS)
@pytest.mark.parametrize("reply", [says, calls])
def test_parse_tells_what_cut_the_answer(
    client: openai.OpenAI, upstream: LoopbackUpstream, finish: str, reply: Any
) -> None:
    """`.parse()` names the reason of a cut answer, and does not try to read half of a JSON text or of a call."""
    upstream.script(reply(REPORT[:-5], finish=finish))
    with pytest.raises(CUT_ERRORS[finish]):
        client.chat.completions.parse(model="auto", messages=ASKED, response_format=Report, tools=TOOLS)


def test_parse_reads_parallel_calls(client: openai.OpenAI, upstream: LoopbackUpstream) -> None:
    """`.parse()` turns the arguments of each call into an object of the tool's class."""
    upstream.script(calls(REPORT, json.dumps({"city": "Rome", "degrees": 24})))
    reply = client.chat.completions.parse(model="auto", messages=ASKED, tools=TOOLS)
    made = [call.function.parsed_arguments for call in reply.choices[0].message.tool_calls or []]
    assert made == [Report(city="Oslo", degrees=4), Report(city="Rome", degrees=24)]
