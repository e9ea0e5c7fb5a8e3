"""A reply in the form of the Messages API: the events of a stream, the whole message, and errors."""

import asyncio
import json
from typing import Any

import msgspec
import pytest

from cadenza.core.errors import (
    CadenzaError,
    Forbidden,
    InsufficientCredit,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    PayloadTooLarge,
    RateLimited,
    Unauthenticated,
    UpstreamFailed,
)
from cadenza.core.grounding import Source
from cadenza.core.money import Price
from cadenza.core.records import Usage
from cadenza.core.tool_calls import ToolCallPart
from cadenza.gateway.answers import Answers
from cadenza.gateway.meter import UsageMeter
from cadenza.gateway.relay import ReplyHead
from cadenza.parts.protocols.anthropic import MESSAGE_ERRORS, error_body
from cadenza.parts.protocols.anthropic_reply import MessageStream, WholeMessage
from cadenza.parts.protocols.anthropic_request import NO_THREADS
from cadenza.parts.protocols.translation import Kept
from cadenza.upstreams.base import Piece
from tests.grounded_answer import cited as grounded
from tests.parts.protocols.generated.checks import assemble_message, events_of
from tests.unit.gateway.client import WAIT_S, Client
from tests.unit.gateway.funded_store import FundedStore
from tests.unit.gateway.gateways import running_api
from tests.unit.gateway.prompts import prompt_of
from tests.unit.gateway.scripted_upstream import ScriptedReply, ScriptedUpstream, Step

PRICE = Price(1_070, 3_450)
HEAD = ReplyHead("chatcmpl-one", 1_800_000_000, "forte", PRICE, has_tools=True)
PLAIN = msgspec.structs.replace(HEAD, has_tools=False)
USAGE = Usage(50, 7, cached_tokens=20)
SHOWN_USAGE = {
    "input_tokens": 30,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 20,
    "output_tokens": 7,
}
LONG_NAME = "mcp__files__" + "n" * 80


def end(reason: str = "stop") -> Piece:
    return Piece(finish_reason=reason, usage=USAGE)


def thought(text: str) -> Piece:
    return Piece(extras={"reasoning_content": text})


def call(index: int, arguments: str = "", *, begins: bool = False) -> Piece:
    part = ToolCallPart(index, f"up-{index}" if begins else "", f"tool_{index}" if begins else "", arguments)
    return Piece(calls=(part,))


class Reply:
    """A reply to one client."""

    def __init__(self, *steps: Step, head: ReplyHead = HEAD, shows_thinking: bool = True) -> None:
        self.client = Client()
        self._reply = ScriptedReply(*steps)
        self._head = head
        self._kept = Kept(names={"tool_9": ("", LONG_NAME)}, shows_thinking=shows_thinking)
        self.meter = UsageMeter(prompt_of(17, 200), 100)
        self.meter.bound(10_000)
        self.exchange = self.client.open()
        self.answers = Answers(self.exchange, "req-1", errors=MESSAGE_ERRORS)

    async def stream(self) -> Any:
        """What Anthropic's own client makes of its stream."""
        relay = MessageStream(self.exchange, self.answers, self._head, self.meter, kept=self._kept)
        async with asyncio.timeout(WAIT_S):
            relay.finish(await relay.run(self._reply))
        return assemble_message(events_of(b"".join(self.client.bodies)))

    async def whole(self) -> Any:
        """The message."""
        relay = WholeMessage(self.answers, self._head, self.meter, kept=self._kept)
        async with asyncio.timeout(WAIT_S):
            relay.finish(await relay.run(self._reply))
        return msgspec.json.decode(self.client.bodies[0])


def content_of(message: Any) -> list[Any]:
    """The blocks, without what a client does not send back and the ids of calls, which are random."""
    kept = ("type", "text", "thinking", "name", "input")
    return [{name: block[name] for name in kept if name in block} for block in message["content"]]


async def test_the_events_of_a_text() -> None:
    """The sequence that Anthropic publishes, with counts at its end, and the cost where the key says so."""
    reply = Reply(Piece("Hel"), Piece("lo"), end(), head=msgspec.structs.replace(HEAD, shows_cost=True))
    await reply.stream()
    named = events_of(b"".join(reply.client.bodies))
    events = [msgspec.json.decode(data) for _, data in named]
    assert [name for name, _ in named] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    started = events[0]["message"]
    assert (started["content"], started["stop_reason"], started["usage"]["output_tokens"]) == ([], None, 0)
    assert (started["id"], started["model"], started["role"]) == ("chatcmpl-one", "forte", "assistant")
    assert events[1]["content_block"] == {"type": "text", "text": ""}
    assert events[2]["delta"] == {"type": "text_delta", "text": "Hel"}
    assert events[5] == {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": SHOWN_USAGE | {"cost": pytest.approx((50 * 1070 + 7 * 3450) / 10**9)},
    }


async def test_calls_that_arrive_mixed_follow_each_other() -> None:
    """A call waits until the one before it is complete; a text that comes between waits for the end of the calls."""
    steps = (
        call(0, '{"a":', begins=True),
        call(1, '{"b":', begins=True),
        Piece("text"),
        thought("hm"),
        call(0, "1}"),
        call(1, "2}"),
    )
    message = await Reply(*steps, end("tool_calls")).stream()
    assert content_of(message) == [
        {"type": "tool_use", "name": "tool_0", "input": {"a": 1}},
        {"type": "tool_use", "name": "tool_1", "input": {"b": 2}},
        {"type": "text", "text": "text"},
        {"type": "thinking", "thinking": "hm"},
    ]
    assert message["content"][-1]["signature"]
    assert message["stop_reason"] == "tool_use"


@pytest.mark.parametrize(
    ("reason", "shown"),
    [("stop", "end_turn"), ("length", "max_tokens"), ("content_filter", "refusal"), ("odd", "end_turn")],
)
async def test_why_a_reply_ended(reason: str, shown: str) -> None:
    """Each finish reason has a counterpart."""
    steps = Piece("a"), end(reason)
    assert (await Reply(*steps).stream())["stop_reason"] == (await Reply(*steps).whole())["stop_reason"] == shown


async def test_thinking_is_hidden_unless_it_was_asked_for() -> None:
    """Then it does not count as delivered either."""
    hidden = Reply(thought("hm"), Piece("a"), end(), shows_thinking=False)
    assert content_of(await hidden.stream()) == [{"type": "text", "text": "a"}]
    assert hidden.meter.kept_chars == 1
    uncounted = Reply(thought("hm"), Piece("a", "stop"), shows_thinking=False)
    whole = await uncounted.whole()
    assert content_of(whole) == [{"type": "text", "text": "a"}]
    assert whole["usage"]["output_tokens"] == 1


async def test_sources_of_a_text_before_thinking() -> None:
    """They are citations of a further block, because that of the text is closed."""
    grounding = grounded(Source("https://x.test", "X", "text"))
    head = msgspec.structs.replace(PLAIN, grounding=grounding)
    message = await Reply(Piece("So [1]."), thought("hm"), end(), head=head).stream()
    assert [len(block.get("citations") or ()) for block in message["content"]] == [0, 0, 1]


async def test_a_call_has_the_name_that_the_client_gave() -> None:
    """A tool with a name that is too long for a model has a shorter one there."""
    pieces = call(0, "{}", begins=True), call(9, "{}", begins=True), end("tool_calls")
    blocks = (await Reply(*pieces).stream())["content"], (await Reply(*pieces).whole())["content"]
    assert [[block["name"] for block in one] for one in blocks] == [["tool_0", LONG_NAME]] * 2


TYPES = [
    (InvalidRequest("no"), "invalid_request_error"),
    (Unauthenticated(), "authentication_error"),
    (InsufficientCredit("no"), "billing_error"),
    (Forbidden("no"), "permission_error"),
    (NotFound("no"), "not_found_error"),
    (MethodNotAllowed("GET", ("POST",)), "invalid_request_error"),
    (PayloadTooLarge(), "request_too_large"),
    (RateLimited("no", 1.0), "rate_limit_error"),
    (UpstreamFailed("no"), "api_error"),
    (CadenzaError("no"), "api_error"),
]


@pytest.mark.parametrize(("error", "type_"), TYPES, ids=[type(error).__name__ for error, _ in TYPES])
def test_the_type_of_an_error_follows_its_status(error: CadenzaError, type_: str) -> None:
    """With our own sentence, and the id of the request."""
    assert msgspec.json.decode(error_body(error, "req-1")) == {
        "type": "error",
        "error": {"type": type_, "message": error.message},
        "request_id": "req-1",
    }


def test_the_refusal_of_a_thread_says_what_the_sdk_reads() -> None:
    """With these details it sends all messages instead, without a thread."""
    error = msgspec.json.decode(error_body(InvalidRequest(NO_THREADS), ""))["error"]
    assert error["details"] == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}


async def test_one_long_prompt_of_an_account_is_counted_for_free_at_a_time(funded: FundedStore) -> None:
    """Another one meanwhile is estimated by its length."""
    body = json.dumps({"model": "forte", "messages": [{"role": "user", "content": "word " * 8_000}]}).encode()
    clients = [Client() for _ in range(2)]
    async with running_api(funded, ScriptedUpstream()) as api:
        for client in clients:
            client.open(funded.key_headers, path="/v1/messages/count_tokens", body=body)
        await asyncio.gather(*(client.serve(api.gateway) for client in clients))
        assert api.gateway.large_bodies.counting == set()
    counted, estimated = sorted(json.loads(client.bodies[0])["input_tokens"] for client in clients)
    assert counted == pytest.approx(8_000, rel=0.01)
    assert estimated == pytest.approx(10_000, rel=0.01)
