"""A trial of one model: for each thing that an upstream does differently, the finding and its setting."""

import asyncio
from typing import Any

import msgspec
import pytest

from cadenza.core.faults import FaultKind
from cadenza.core.records import Route
from cadenza.parts.evaluation.trial.session import TrialFinding
from cadenza.parts.evaluation.trial.trial import REQUESTS_MAX, try_model, try_plain_reply
from cadenza.upstreams.dialects import DIALECTS
from tests.loopback import ByMode, Json, LoopbackUpstream, Reply, Status, completion, said
from tests.trial_upstream import Body, Provider, chats
from tests.unit.http.raw_client import WAIT_S
from tests.unit.upstreams.asks import TIMEOUTS, running

QUOTA = FaultKind.QUOTA

ROUTE = Route("acme", "large", 100_000, 1000, timeouts=TIMEOUTS)


async def trial(
    upstream: LoopbackUpstream, reply: Reply, dialect: str = "plain", **route: Any
) -> dict[str, TrialFinding]:
    """The findings, by what was tried."""
    upstream.always(reply)
    where = msgspec.structs.replace(ROUTE, custom_tools=DIALECTS[dialect].custom_tools, **route)
    async with asyncio.timeout(3 * WAIT_S), running(upstream.base_url, dialect=DIALECTS[dialect]) as openai:
        findings = await try_model(openai, dialect, where, WAIT_S)
    return {finding.tried: finding for finding in findings}


def roles(body: Body) -> list[str]:
    return [message["role"] for message in body["messages"]]


def turn(body: Body, **fields: object) -> bool:
    """Whether the request is the turn after a call, and the message with the call has these fields."""
    return "tool" in roles(body) and all(body["messages"][2].get(name, "none") == fields[name] for name in fields)


def call_id_chars(body: Body) -> int:
    return len(body["messages"][2]["tool_calls"][0]["id"])


def has_named_choice(body: Body) -> bool:
    return isinstance(body.get("tool_choice"), dict)


@pytest.mark.parametrize(
    ("provider", "tried", "found", "setting"),
    [
        (
            Provider(refuses=lambda body: "max_tokens" in body),
            "max_tokens",
            "max_tokens is refused, max_completion_tokens is obeyed",
            'max_tokens_field = "max_completion_tokens"',
        ),
        (
            Provider(limits=("max_completion_tokens",)),
            "max_tokens",
            "max_tokens is ignored, max_completion_tokens is obeyed",
            'max_tokens_field = "max_completion_tokens"',
        ),
        (Provider(limits=()), "max_tokens", "max_tokens is ignored", ""),
        (
            Provider(refuses=lambda body: "stream_options" in body),
            "stream",
            "stream_options is refused; streams work without it",
            'omit = ["stream_options"]',
        ),
        (
            Provider(refuses=lambda body: {"temperature", "stop"} & body.keys()),
            "sampling",
            "temperature, stop are refused",
            'omit = ["temperature", "stop"]',
        ),
        (
            Provider(refuses=lambda body: {"temperature", "top_p"} <= body.keys()),
            "sampling",
            "top_p is refused together with other sampling fields",
            'omit = ["top_p"]',
        ),
        (
            Provider(prompt=lambda body: body["messages"][-1]),
            "system",
            "a system message does not make the prompt longer",
            "",
        ),
        (Provider(calls=lambda _: False), "forced", "a function that is forced by name is not called", ""),
        (
            Provider(refuses=lambda body: "parallel_tool_calls" in body),
            "forced",
            "a function that is forced by name is called; parallel_tool_calls is refused",
            'omit = ["parallel_tool_calls"]',
        ),
        (
            Provider(refuses=lambda body: "reasoning_content" in str(body)),
            "reasoning",
            "no reasoning in replies; refused in a next turn",
            'reasoning = "drop"',
        ),
        (
            Provider(refuses=lambda body: roles(body)[-3:] == ["user", "assistant", "user"]),
            "reasoning",
            "no reasoning in replies; a next turn is refused even without it",
            "",
        ),
        (
            Provider(calls=lambda _: False, prompt=lambda body: body["messages"]),
            "tools",
            "accepted, but tools do not make the prompt longer",
            "",
        ),
    ],
    ids=lambda value: "" if isinstance(value, Provider) else None,
)
async def test_warning(upstream: LoopbackUpstream, provider: Provider, tried: str, found: str, setting: str) -> None:
    """What is refused or ignored is a warning, with the setting that helps if there is one."""
    finding = (await trial(upstream, provider))[tried]
    assert (finding.state, finding.found, finding.setting) == ("warning", found, setting)


@pytest.mark.parametrize(
    ("provider", "tried", "dialect"),
    [
        (Provider(calls=lambda body: body.get("tool_choice") == "required"), "forced", "llamacpp"),
        (Provider(refuses=lambda body: turn(body, content=None)), "tool turn", "deepseek"),
        (Provider(refuses=lambda body: turn(body, content=None) or turn(body, content="")), "tool turn", "gemini"),
        (Provider(refuses=lambda body: turn(body) and call_id_chars(body) != 9), "tool turn", "mistral"),
    ],
    ids=["named choice", "null content", "empty content", "call ids"],
)
async def test_dialect(upstream: LoopbackUpstream, provider: Provider, tried: str, dialect: str) -> None:
    """What no setting of a route mends leads to a dialect; with it the trial finds nothing to warn of."""
    finding = (await trial(upstream, provider))[tried]
    assert (finding.state, finding.setting) == ("warning", f'dialect = "{dialect}"')
    again = await trial(upstream, provider, dialect)
    assert {name for name, finding in again.items() if finding.state != "ok"} <= {"tools", "usage"}


@pytest.mark.parametrize(
    ("system", "state", "setting"), [("one", "ok", ""), ("each", "warning", 'system = "one"')], ids=["one", "each"]
)
@pytest.mark.parametrize(
    ("provider", "words"),
    [
        (Provider(refuses=lambda body: roles(body).count("system") > 1), "a second one is refused"),
        (Provider(prompt=lambda body: body["messages"][-2:]), "one of two is dropped"),
    ],
    ids=["refused", "dropped"],
)
async def test_second_system_message(
    upstream: LoopbackUpstream, provider: Provider, words: str, system: str, state: str, setting: str
) -> None:
    """A second system message that is refused or dropped matters only to a route that sends each one."""
    finding = (await trial(upstream, provider, system=system))["system"]
    assert finding.found.endswith(words)
    assert (finding.state, finding.setting) == (state, setting)


async def test_reasoning_is_named(upstream: LoopbackUpstream) -> None:
    """The field in which replies have reasoning is named, and reasoning is sent back in it."""
    findings = await trial(upstream, Provider(extras={"reasoning": "Hm."}))
    assert findings["reasoning"].found == "replies have reasoning; accepted in a next turn"
    assert any("reasoning" in message for body in chats(upstream.requests) for message in body["messages"])


async def test_config_is_respected(upstream: LoopbackUpstream) -> None:
    """What the config leaves out is not sent, and is said to be left out."""
    findings = await trial(upstream, Provider(), omit=("seed",), reasoning="drop")
    assert findings["sampling"].found.endswith("left out by the config: seed")
    assert findings["reasoning"].found.endswith("the config does not send it back")
    sent = chats(upstream.requests)
    assert not any("seed" in body or "reasoning_content" in str(body) for body in sent)


async def test_refused_tools(upstream: LoopbackUpstream) -> None:
    """An upstream without tools gets a warning; the turn after a call is then not tried."""
    findings = await trial(upstream, Provider(refuses=lambda body: "tools" in body))
    assert findings["tools"].state == "warning"
    assert findings["tool turn"].found == "not tried, as tools are refused"
    assert not any(turn(body) for body in chats(upstream.requests))


@pytest.mark.parametrize(
    ("provider", "state"),
    [
        (Provider(), "warning"),  # it counts from 1 again
        (Provider(refuses=lambda body: roles(body)[-1] == "assistant"), "warning"),
    ],
    ids=["begins again", "refuses"],
)
async def test_continuing(upstream: LoopbackUpstream, provider: Provider, state: str) -> None:
    """A route that says it can continue an answer, but cannot, is told not to."""
    finding = (await trial(upstream, provider, continues=True))["continue"]
    assert (finding.state, finding.setting) == (state, "continue = false")


async def test_stream_in_one_piece(upstream: LoopbackUpstream) -> None:
    """A streaming request that is answered with one JSON document is a warning."""
    finding = (await trial(upstream, ByMode(stream=Json(completion("1, 2, 3")), plain=Provider())))["stream"]
    assert (finding.state, finding.found) == ("warning", "the whole reply comes at once")


@pytest.mark.parametrize("usage", [{"prompt_tokens": 0, "completion_tokens": 3}, {"prompt_tokens": -1}, "none"])
async def test_doubtful_usage(upstream: LoopbackUpstream, usage: object) -> None:
    """Counts that cannot be true are a warning."""
    reply = Json(completion("1, 2, 3", usage=usage))
    finding = (await trial(upstream, ByMode(stream=Provider(), plain=reply)))["usage"]
    assert (finding.state, finding.found) == ("warning", "the token counts of plain replies cannot be true")


@pytest.mark.parametrize(
    ("reply", "found", "advice", "requests"),
    [
        (Status(401), "it rejects the provider's key (unauthorized, status 401)", FaultKind.UNAUTHORIZED.advice, 1),
        (
            Status(404),
            "it does not know the model or the address (not_found, status 404)",
            FaultKind.NOT_FOUND.advice,
            1,
        ),
        (Status(429), "it has no capacity now (busy, status 429); the rest was not tried", FaultKind.BUSY.advice, 1),
        (Status(402), f"{QUOTA.words} (quota, status 402); the rest was not tried", QUOTA.advice, 1),
        (Status(400), "it says that the request is invalid (invalid, status 400)", FaultKind.INVALID.advice, 3),
        (Json(said("1")), "its answer is not a chat completion (malformed)", FaultKind.MALFORMED.advice, 1),
        (
            Provider(refuses=lambda body: "system" in roles(body)),
            "a system message is refused, and every request has one",
            "Choose a model that takes system messages.",
            3,
        ),
    ],
    ids=["key", "model", "busy", "quota", "invalid", "malformed", "system"],
)
async def test_plain_request_fails(
    upstream: LoopbackUpstream, reply: Reply, found: str, advice: str, requests: int
) -> None:
    """If a plain request does not work, that is a fault, and hardly anything else is sent."""
    findings = await trial(upstream, reply)
    assert findings["plain"] == TrialFinding("fault", found, advice=advice, tried="plain")
    assert set(findings) == {"plain", "requests"}
    assert len(upstream.requests) == requests


async def test_busy_on_the_way(upstream: LoopbackUpstream) -> None:
    """An upstream that becomes busy ends the trial with a warning; what was found before is kept."""
    upstream.script(Provider(), Provider(), Status(429))
    findings = await trial(upstream, Provider())
    assert findings["stream"].state == "ok"
    assert findings["sampling"].state == "warning"
    assert len(upstream.requests) == 3


async def test_requests_are_bounded(upstream: LoopbackUpstream) -> None:
    """However an upstream refuses, the trial sends at most the requests that it states."""
    optional = ("stream_options", "temperature", "top_p", "parallel_tool_calls", "tool_choice")
    for refuses in (
        lambda body: any(name in body for name in optional) or roles(body) not in (["system", "user"], ["user"]),
        lambda body: len({"temperature", "seed", "stop"} & body.keys()) > 1 or turn(body) or has_named_choice(body),
        lambda body: "max_tokens" in body or "stream_options" in body or turn(body),
    ):
        upstream.reset()
        await trial(upstream, Provider(refuses=refuses, limits=(), calls=lambda _: False), continues=True)
        assert len(upstream.requests) <= REQUESTS_MAX


async def test_plain_reply_only(upstream: LoopbackUpstream) -> None:
    """For a model whose requests we write ourselves, one plain request is all."""
    upstream.always(Provider())
    async with running(upstream.base_url) as openai:
        (finding,) = await try_plain_reply(openai, "llamacpp", ROUTE, WAIT_S)
    assert finding == TrialFinding("ok", "answers", tried="plain")
    assert len(upstream.requests) == 1
