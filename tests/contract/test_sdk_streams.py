"""The OpenAI SDK on the upstreams of the transcripts: it reads odd streams to their end, and raises on broken ones."""

from typing import Any

import openai
import pytest

from tests.loopback import LoopbackUpstream
from tests.transcripts.reading import FOLDER, Case, read_transcript
from tests.transcripts.upstreams import scripted

[BROKEN] = [
    claim.cases
    for claim in read_transcript(FOLDER / "failures.txt").claims
    if claim.sentence.startswith("A stream that fails later")
]
ASKED: Any = [{"role": "user", "content": "hi"}]


def line_of(case: Case) -> str:
    return f"line {case.line}"


@pytest.mark.parametrize("case", BROKEN, ids=line_of)
def test_sdk_raises_on_a_broken_stream(client: openai.OpenAI, upstream: LoopbackUpstream, case: Case) -> None:
    """The SDK's caller gets the text so far and then an APIError."""
    upstream.script(*map(scripted, case.turns[0].lines["<"]))
    heard: list[str] = []
    stream = client.chat.completions.create(model="forte", messages=ASKED, stream=True)
    with stream, pytest.raises(openai.APIError) as caught:
        heard.extend(choice.delta.content or "" for part in stream for choice in part.choices)
    assert "".join(heard) == "half a word"
    assert caught.value.type == "api_error"


def test_sdk_gets_a_custom_call(client: openai.OpenAI, upstream: LoopbackUpstream) -> None:
    """The OpenAI SDK parses a custom call as its own type of call."""
    upstream.script(scripted('custom:run"print(1)" call:look{} finish:tool_calls'))
    tools: Any = [{"type": "custom", "custom": {"name": "run"}}]
    reply = client.chat.completions.create(model="forte", messages=ASKED, tools=tools)
    [call, _] = reply.choices[0].message.tool_calls or []
    assert call.type == "custom"
    assert (call.custom.name, call.custom.input) == ("run", "print(1)")
