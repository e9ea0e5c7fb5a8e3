"""The Messages API through Anthropic's own SDK: texts, tools, images, counts and errors, and what they cost."""

import contextlib
import http.client
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import pytest
from anthropic.types import TextBlock
from pydantic import BaseModel

from tests.account import FORTE_INPUT_NANO, FORTE_OUTPUT_NANO, Account
from tests.clients.model import CITIES, REPORT, ClientModel
from tests.loopback import STOP, Good, LoopbackUpstream, Pause, Sse, Status, said, usage_chunk
from tests.loopback import Reset as Broken
from tests.raw_client import RawClient
from tests.service import Service
from tests.service_config import CHARACTER
from tests.tokens import count_prompt

TEXT = "A short answer, with ünïcödé and 音楽 🎼."
ASKED: Any = [{"role": "user", "content": "hi"}]
READ: Any = {
    "name": "read",
    "description": "Reads a file.",
    "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}},
}
SEARCH: Any = {"type": "web_search_20250305", "name": "web_search"}


class Weather(BaseModel):
    """What an answer with a schema is parsed to."""

    city: str
    degrees: int


@contextlib.contextmanager
def sdk(service: Service, key: str, **options: Any) -> Iterator[anthropic.Anthropic]:
    http_client = anthropic.DefaultHttpxClient(trust_env=False)
    base_url = f"http://127.0.0.1:{service.port}"
    with anthropic.Anthropic(base_url=base_url, api_key=key, http_client=http_client, max_retries=0, **options) as made:
        yield made


@pytest.fixture
def claude(service: Service, account: Account) -> Iterator[anthropic.Anthropic]:
    with sdk(service, account.create_key()) as made:
        yield made


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_message(
    claude: anthropic.Anthropic, upstream: LoopbackUpstream, account: Account, *, is_stream: bool
) -> None:
    """A text, its counts, and the same charge as for a chat. Of a stream the SDK makes the same, as it comes."""
    upstream.script(Good(TEXT))
    ask: Any = {"model": "forte", "max_tokens": 100, "messages": ASKED, "system": "Be brief."}
    if is_stream:
        with claude.messages.stream(**ask) as stream:
            assert len(list(stream.text_stream)) > 1
            reply = stream.get_final_message()
    else:
        reply = claude.messages.create(**ask)
    assert [block.text for block in reply.content if isinstance(block, TextBlock)] == [TEXT]
    assert (reply.model, reply.role, reply.stop_reason) == ("forte", "assistant", "end_turn")
    usage = reply.usage
    assert (usage.input_tokens, usage.output_tokens) == (8, 7)
    assert is_stream or usage.cache_read_input_tokens == 3
    assert account.spent_nano == 11 * FORTE_INPUT_NANO + 7 * FORTE_OUTPUT_NANO
    [system, asked] = upstream.requests[-1].json["messages"]
    assert system["content"] == f"{CHARACTER}\n\nBe brief."
    assert asked == ASKED[0]


@pytest.mark.parametrize("is_stream", [False, True])
def test_the_tool_runner(
    claude: anthropic.Anthropic, upstream: LoopbackUpstream, account: Account, *, is_stream: bool
) -> None:
    """The SDK makes the calls itself; it wants a thread kept here, learns that none is, and sends all messages."""
    called: list[str] = []

    @anthropic.beta_tool  # type: ignore[untyped-decorator]
    def get_weather(city: str) -> str:
        """The temperature of a city in degrees."""
        called.append(city)
        return str(CITIES[city])

    upstream.always(ClientModel())
    ask: Any = {"model": "forte", "max_tokens": 100, "messages": ASKED, "tools": [get_weather], "stream": is_stream}
    reply = claude.beta.messages.tool_runner(**ask).until_done()
    assert called == list(CITIES)
    assert [block.text for block in reply.content if block.type == "text"] == ["4, 24"]
    assert len(account.charges) == len(upstream.requests) == 2


def test_structured_output(claude: anthropic.Anthropic, upstream: LoopbackUpstream) -> None:
    """A schema goes upstream in the form of a chat, and the SDK parses the answer, streamed or not."""
    upstream.always(ClientModel())
    ask: Any = {"model": "forte", "max_tokens": 100, "messages": ASKED, "output_format": Weather}
    assert claude.messages.parse(**ask).parsed_output == Weather.model_validate(REPORT)
    with claude.messages.stream(**ask) as stream:
        assert stream.get_final_message().parsed_output == Weather.model_validate(REPORT)
    form = upstream.requests[-1].json["response_format"]
    assert (form["type"], form["json_schema"]["strict"]) == ("json_schema", True)
    assert form["json_schema"]["schema"]["properties"].keys() == {"city", "degrees"}


def test_a_broken_stream_raises(claude: anthropic.Anthropic, upstream: LoopbackUpstream, account: Account) -> None:
    """The caller gets the text so far and then an error; what was delivered is charged, once."""
    upstream.script(Sse([said("half a word"), Broken()]))
    heard: list[str] = []
    with (
        pytest.raises(anthropic.APIStatusError) as caught,
        claude.messages.stream(model="forte", max_tokens=100, messages=ASKED) as stream,
    ):
        heard.extend(stream.text_stream)
    assert "".join(heard) == "half a word"
    assert caught.value.body["error"]["type"] == "api_error"
    assert account.charge()["completion_tokens"] > 0


def test_errors(claude: anthropic.Anthropic, upstream: LoopbackUpstream, service: Service) -> None:
    """Each is raised as the SDK's own class, with our sentence."""
    ask: Any = {"model": "forte", "max_tokens": 10, "messages": ASKED}
    with pytest.raises(anthropic.BadRequestError, match="does not exist") as unknown:
        claude.messages.create(**ask | {"model": "nothing-known"})
    assert unknown.value.body["type"] == "error"
    with pytest.raises(anthropic.BadRequestError, match="messages: must be an array"):
        claude.messages.create(**ask | {"messages": []})
    upstream.script(Status(500))
    with pytest.raises(anthropic.InternalServerError) as failed:
        claude.messages.create(**ask)
    assert failed.value.status_code == 502
    with sdk(service, "sk-cdz-wrong") as other, pytest.raises(anthropic.AuthenticationError, match="No valid API key"):
        other.messages.create(**ask)


def test_every_refusal_has_the_shape(service: Service, api_as: Callable[[str | None], RawClient]) -> None:
    """Also one that comes before the endpoint is asked: without a key, with another method, with a scope that lacks."""
    wanted = [
        (api_as(None).request("POST", "/v1/messages", b"{}"), 401, "authentication_error"),
        (api_as(service.key).get("/v1/messages"), 405, "invalid_request_error"),
        (api_as(service.key).get(f"/v1/messages?q={'a' * 5000}"), 400, "invalid_request_error"),
        (
            api_as(service.create_key(scopes=("models",))).request("POST", "/v1/messages/count_tokens", b"{}"),
            403,
            "permission_error",
        ),
    ]
    for reply, status, type_ in wanted:
        value = json.loads(reply.body)
        assert (reply.status, value["type"], value["error"]["type"]) == (status, "error", type_)
        assert value["request_id"] == reply.headers["x-request-id"]


def test_an_account_without_credit(service: Service) -> None:
    """402 with our sentence, in Anthropic's shape; to count is free as long as the body is small."""
    key = service.create_key(service.create_account(0))
    with sdk(service, key) as poor:
        with pytest.raises(anthropic.APIStatusError, match="Add credit") as caught:
            poor.messages.create(model="forte", max_tokens=10, messages=ASKED)
        assert caught.value.status_code == 402
        assert caught.value.body["error"]["type"] == "billing_error"
        assert poor.messages.count_tokens(model="forte", messages=ASKED).input_tokens > 0
        with pytest.raises(anthropic.APIStatusError, match="Add credit"):
            poor.messages.count_tokens(model="forte", messages=[{"role": "user", "content": "word " * 1_000}])


def test_a_prompt_is_counted(claude: anthropic.Anthropic, account: Account, upstream: LoopbackUpstream) -> None:
    """By our own tokenizer, with the class's character, for free; a long one is estimated, and no model is asked."""
    before = len(upstream.requests)
    for words, is_exact in ((1, True), (20_000, True), (28_000, False)):
        said = "word " * words
        counted = claude.messages.count_tokens(
            model="forte", messages=[{"role": "user", "content": said}], system="Be brief."
        )
        exact = count_prompt([CHARACTER, "Be brief.", said])
        assert (counted.input_tokens == exact) is is_exact
        assert counted.input_tokens == pytest.approx(exact, rel=0.3)
    assert len(upstream.requests) == before
    assert account.spent_nano == 0


def test_a_large_body(claude: anthropic.Anthropic, account: Account, upstream: LoopbackUpstream) -> None:
    """It is translated where large bodies are parsed, also to be counted."""
    upstream.script(Good(TEXT))
    long: Any = [{"role": "user", "content": [{"type": "text", "text": "a word, " * 160_000}]}]
    assert claude.messages.create(model="forte", max_tokens=100, messages=long).stop_reason == "end_turn"
    assert upstream.requests[-1].json["messages"][-1]["content"] == "a word, " * 160_000
    about = claude.messages.count_tokens(model="forte", messages=long).input_tokens
    assert about == pytest.approx(len("a word, " * 160_000) / 4, rel=0.01)
    assert len(account.charges) == 1


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_prompt_that_is_too_long(service: Service, account: Account, *, is_stream: bool) -> None:
    """400 in the words that make Claude Code shorten the conversation, and no charge."""
    body = {"model": "forte", "max_tokens": 9, "stream": is_stream}
    body["messages"] = [{"role": "user", "content": "é" * 1_000_100}]
    reply = account.api.request("POST", "/v1/messages", json.dumps(body, ensure_ascii=False).encode())
    error = json.loads(reply.body)["error"]
    assert (reply.status, error["type"]) == (400, "invalid_request_error")
    assert re.fullmatch(r"prompt is too long: 100\d{4} tokens > 1000000 maximum", error["message"])
    assert account.spent_nano == 0


def test_what_claude_code_sends(service: Service, upstream: LoopbackUpstream) -> None:
    """Its fields and headers are accepted, with a key as a Bearer token, and each block of the stream is complete."""
    pause = Pause()
    upstream.script(Sse([said("Hel"), pause, said("lo"), STOP, usage_chunk()]))
    pause.release()
    body = {
        "model": "auto",
        "max_tokens": 64_000,
        "stream": True,
        "system": [{"type": "text", "text": "You help.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]},
            {"role": "system", "content": "Note."},
        ],
        "tools": [READ, SEARCH],
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "medium"},
        "metadata": {"user_id": "user"},
        "stop_sequences": [],
    }
    headers = {
        "authorization": f"Bearer {service.key}",
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14",
    }
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", service.port, timeout=60)) as connection:
        connection.request("HEAD", "/", headers=headers)
        reply = connection.getresponse()
        reply.read()
        assert reply.status == 200
        connection.request("POST", "/v1/messages?beta=true", json.dumps(body), headers)
        reply = connection.getresponse()
        events = [json.loads(line[6:]) for line in reply.read().split(b"\n") if line.startswith(b"data: ")]
    ignored = reply.headers["x-cadenza-ignored"].split(", ")
    assert set(ignored) == {"tools.web_search_20250305", "thinking", "context_management", "metadata"}
    assert [event["type"] for event in events] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert upstream.requests[-1].json["reasoning_effort"] == "medium"
