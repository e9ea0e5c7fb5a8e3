"""The Responses API over TCP with the SDK of OpenAI: plain, streamed, with tools, a schema and an image; its errors."""

import json
from typing import Any

import openai
import pytest
from openai.types.responses import Response
from pydantic import BaseModel

from tests.account import open_account
from tests.loopback import ROLE, STOP, LoopbackUpstream, Sse, chunk, said, usage_chunk, usage_of
from tests.service import Service
from tests.transcripts.upstreams import scripted

TOOL: Any = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": False}


class Person(BaseModel):
    """What a reply with a schema is parsed to."""

    name: str


def checked(response: Response) -> Response:
    """Each field has the type that the SDK declares, which it does not check itself."""
    return Response.model_validate(response.to_dict())


def test_a_response_is_read_by_the_sdk(client: openai.OpenAI, upstream: LoopbackUpstream) -> None:
    """Its text, its class, its tokens, and every field that the SDK declares."""
    upstream.script(scripted('"Hello" finish:stop usage:9/2'))
    response = checked(client.responses.create(model="gpt-5", input="hi", instructions="Be brief.", store=True))
    assert (response.output_text, response.model, response.status) == ("Hello", "forte", "completed")
    assert response.usage
    assert response.to_dict()["store"] is False
    assert [message["role"] for message in upstream.requests[-1].json["messages"]] == ["system", "user"]


def test_a_stream_accumulates_to_its_last_event(client: openai.OpenAI, upstream: LoopbackUpstream) -> None:
    """The SDK's helper builds the response from the events, and it is that of `response.completed`."""
    thought = chunk({"reasoning_content": "hm"})
    upstream.script(Sse([ROLE, thought, said("Hel"), said("lo"), STOP, usage_chunk(usage_of(9, 2))]))
    with client.responses.stream(model="forte", input="hi") as stream:
        events = [*stream]
        final = stream.get_final_response()
    last = events[-1]
    assert last.type == "response.completed"
    assert final.output_text == "Hello"
    assert [event.snapshot for event in events if event.type == "response.output_text.delta"] == ["Hel", "Hello"]
    assert [item.type for item in final.output] == ["reasoning", "message"]
    assert checked(final).output == checked(last.response).output
    assert [event.sequence_number for event in events] == [*range(len(events))]


@pytest.mark.parametrize("is_streamed", [False, True])
def test_tools_over_two_turns(client: openai.OpenAI, upstream: LoopbackUpstream, is_streamed: bool) -> None:
    """The items of a reply are sent back as they came, with the output of each call; the upstream gets its own ids."""
    calling = scripted('"I look." call:look{"a":1} call:look{"a":2} finish:tool_calls')
    upstream.script(calling, scripted('"Done" finish:stop'))
    history: list[Any] = [{"role": "user", "content": "look twice"}]
    if is_streamed:
        with client.responses.stream(model="forte", input=history, tools=[TOOL]) as stream:
            response: Response = stream.get_final_response()
    else:
        response = client.responses.create(model="forte", input=history, tools=[TOOL])
    calls = [item for item in response.output if item.type == "function_call"]
    assert [json.loads(call.arguments) for call in calls] == [{"a": 1}, {"a": 2}]
    history += [item.to_dict(exclude_unset=True) for item in response.output]
    for item in history:
        item.pop("parsed_arguments", None)
    history += [{"type": "function_call_output", "call_id": call.call_id, "output": "seen"} for call in calls]
    assert client.responses.create(model="forte", input=history, tools=[TOOL]).output_text == "Done"
    _, _, turn, *answers = upstream.requests[-1].json["messages"]
    assert (turn["content"], len(turn["tool_calls"])) == ("I look.", 2)
    assert [one["tool_call_id"] for one in answers] == [call["id"] for call in turn["tool_calls"]]
    assert not any(call["id"] == calls[0].call_id for call in turn["tool_calls"]), "our ids stay here"


def test_structured_output_is_parsed(client: openai.OpenAI, upstream: LoopbackUpstream) -> None:
    """The schema goes upstream in the form of a chat, and the SDK parses the text of the reply."""
    upstream.script(scripted(r'"{\"name\":\"Ada\"}" finish:stop'))
    parsed = client.responses.parse(model="forte", input="who", text_format=Person).output_parsed
    assert parsed == Person(name="Ada")
    form = upstream.requests[-1].json["response_format"]
    assert (form["type"], form["json_schema"]["name"], form["json_schema"]["strict"]) == ("json_schema", "Person", True)


def test_errors_are_those_of_the_sdk(service: Service, client: openai.OpenAI) -> None:
    """400, 401 and 402 in the shape of every other error."""
    with pytest.raises(openai.BadRequestError, match="Nothing is stored here"):
        client.responses.create(model="forte", input="hi", previous_response_id="resp_1")
    with pytest.raises(openai.NotFoundError, match="not stored"):
        client.responses.retrieve("resp_1")
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="sk-cdz-wrong").responses.create(model="forte", input="hi")
    with open_account(service, 0) as poor, pytest.raises(openai.APIStatusError) as caught:
        client.with_options(api_key=poor.api.key).responses.create(model="forte", input="hi")
    assert (caught.value.status_code, caught.value.type) == (402, "insufficient_quota")


def test_a_stream_that_fails_raises(client: openai.OpenAI, upstream: LoopbackUpstream) -> None:
    """The caller gets the text so far and then an APIError with our sentence."""
    upstream.script(scripted('"half" reset'))
    heard: list[str] = []
    stream = client.responses.create(model="forte", input="hi", stream=True)
    with stream, pytest.raises(openai.APIError, match="broke off"):
        heard.extend(event.delta for event in stream if event.type == "response.output_text.delta")
    assert heard == ["half"]
