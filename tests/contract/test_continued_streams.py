"""A stream whose upstream fails is continued by another: one stream, counted and charged as one answer."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.account import PROMPT_TOKENS, Account, forte_nano, open_account
from tests.ledger_reader import usage_cost_nano
from tests.loopback import (
    ROLE,
    STOP,
    Close,
    Event,
    LoopbackUpstream,
    Pause,
    Reply,
    Reset,
    Sse,
    Status,
    chunk,
    said,
    usage_chunk,
    usage_of,
)
from tests.raw_client import MESSAGES, RawClient, read_all, read_until
from tests.schemas import Stream, check_broken_stream, check_stream
from tests.service import Service
from tests.service_config import CHARACTER, RouteSpec, ServiceSpec
from tests.tokens import count_tokens

IDLE_S = 3.5  # of an upstream that falls silent
BEGUN = ["Once upon", " a time", " there"]
SAID_TOKENS = count_tokens("".join(BEGUN))
MAX_TOKENS = 40
COST_OF = "SELECT provider_cost_nano FROM usage WHERE completion_id = ?"
FAILURES: dict[str, list[Event]] = {
    "reset": [Reset()],
    "closed": [Close()],
    "closed within an event": [b'data: {"choices": [{"delta": {"content": "wo', Close()],
    "closed within a character": [b'data: {"choices":[{"index":0,"delta":{"content":"caf\xc3', Close()],
    "silent": [Pause()],
    "error event": [{"error": {"message": "boom"}}],
    "garbage": [b"data: {nothing\n\n"],
    "end without a finish reason": [],
}
SMALL_TOKENS = 2_000
HASTY = f"timeouts = {{ connect_s = 60, first_token_s = 60, idle_s = {IDLE_S} }}"
MORE_TOML = f"""
[[classes.mezzo.routes]]
provider = "first"
model = "one"
cost_input = "0.10"
cost_output = "0.40"
{HASTY}

[[classes.mezzo.routes]]
provider = "second"
model = "two"
cost_input = "0.20"
cost_output = "0.80"
cost_cached = "0.05"
order = 1

[[classes.fortissimo.routes]]
provider = "first"
model = "one"
context_tokens = 128_000
max_output_tokens = 8_192
{HASTY}

[[classes.fortissimo.routes]]
provider = "second"
model = "small"
context_tokens = {SMALL_TOKENS}
max_output_tokens = 1_000
order = 1
continue = true
"""


@pytest.fixture(scope="module")
def second() -> Iterator[LoopbackUpstream]:
    with LoopbackUpstream() as running:
        yield running


@pytest.fixture(scope="module")
def third() -> Iterator[LoopbackUpstream]:
    with LoopbackUpstream() as running:
        yield running


@pytest.fixture(scope="module")
def continued(
    shared_upstream: LoopbackUpstream, second: LoopbackUpstream, third: LoopbackUpstream
) -> Iterator[Service]:
    """forte: three routes, the later two can continue an answer. mezzo: two that cannot.

    fortissimo: two routes, the second can continue within a small context window. The first routes of mezzo and
    fortissimo may not be silent for long.
    """
    spec = ServiceSpec(
        providers={"first": shared_upstream.base_url, "second": second.base_url, "third": third.base_url},
        routes={
            "forte": [
                RouteSpec("first", "one"),
                RouteSpec("second", "two", 1, continues=True),
                RouteSpec("third", "three", 2, continues=True),
            ],
        },
        more_toml=MORE_TOML,
    )
    with Service(spec) as service:
        yield service


@pytest.fixture
def account(continued: Service, second: LoopbackUpstream, third: LoopbackUpstream) -> Iterator[Account]:
    second.reset()
    third.reset()
    continued.reload()
    with open_account(continued) as opened:
        yield opened


def failing(*texts: str, failure: str = "reset") -> Sse:
    """A stream that breaks after these texts."""
    return Sse([ROLE, *map(said, texts), *FAILURES[failure]])


def ending(*texts: str, usage: dict[str, Any] | None = None) -> Sse:
    """A stream that ends well."""
    return Sse([ROLE, *map(said, texts), STOP, *([usage_chunk(usage)] if usage else [])])


def ask(account: Account, **fields: Any) -> bytes:
    return account.api.chat(**{"model": "forte", "stream": True, "max_tokens": MAX_TOKENS, **fields}).body


def check_charge(account: Account, stream: Stream, model: str = "forte") -> None:
    """There is one charge, for exactly the usage that the client was told."""
    assert -account.charge()["amount_nano"] == usage_cost_nano(model, stream.usage)


@pytest.mark.parametrize("failure", FAILURES)
def test_stream_is_continued(
    account: Account, upstream: LoopbackUpstream, second: LoopbackUpstream, failure: str
) -> None:
    """However the first upstream fails, the client gets both texts as one stream and pays for one prompt and both."""
    model = "fortissimo" if failure == "silent" else "forte"
    upstream.script(failing(*BEGUN, failure=failure))
    second.script(ending(" was", " a fox.", usage=usage_of(20 + SAID_TOKENS, 5, 7)))
    stream = check_stream(ask(account, model=model))
    assert stream.text == "Once upon a time there was a fox."
    assert stream.finish_reason == "stop"
    assert stream.usage == {
        "prompt_tokens": 20,
        "completion_tokens": 5 + SAID_TOKENS,
        "total_tokens": 25 + SAID_TOKENS,
        "prompt_tokens_details": {"cached_tokens": 7},
    }
    check_charge(account, stream, model)


def test_both_providers_of_a_continued_stream_cost_something(
    account: Account, upstream: LoopbackUpstream, second: LoopbackUpstream
) -> None:
    """The first counts the prompt and what it said; the second counts both as its prompt, and the rest."""
    upstream.script(failing(*BEGUN))
    second.script(ending(" was", " a fox.", usage=usage_of(20 + SAID_TOKENS, 5, 7)))
    ask(account)
    [row] = account.service.ledger.query(COST_OF, account.charge()["completion_id"])
    first_nano = PROMPT_TOKENS * 100 + SAID_TOKENS * 400
    assert row["provider_cost_nano"] == first_nano + (13 + SAID_TOKENS) * 200 + 7 * 50 + 5 * 800


def test_small_window_is_measured_in_tokens(
    account: Account, upstream: LoopbackUpstream, second: LoopbackUpstream
) -> None:
    """A stream is continued if prompt and text fit by their tokens, although their bytes would not fit."""
    content, begun = "word " * 250, " word" * 800
    upstream.script(failing(begun))
    second.script(ending(" The end."))
    messages = [{"role": "user", "content": content}]
    stream = check_stream(ask(account, model="fortissimo", messages=messages, max_tokens=2_000))
    assert len(content) + count_tokens(begun) > SMALL_TOKENS
    assert stream.text == begun + " The end."


def test_request_to_the_second_upstream(account: Account, upstream: LoopbackUpstream, second: LoopbackUpstream) -> None:
    """The second upstream gets the same messages, the delivered text to continue, and the rest of the output limit."""
    upstream.script(failing(*BEGUN))
    second.script(ending(" was a fox."))
    ask(account, temperature=0.5)
    [request] = second.requests
    assert request.json == {
        "model": "two",
        "messages": [
            {"role": "system", "content": CHARACTER},
            *MESSAGES,
            {"role": "assistant", "content": "".join(BEGUN)},
        ],
        "continue_final_message": True,
        "add_generation_prompt": False,
        "temperature": 0.5,
        "max_tokens": MAX_TOKENS - SAID_TOKENS,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_continuation_without_usage_is_counted_locally(
    account: Account, upstream: LoopbackUpstream, second: LoopbackUpstream
) -> None:
    """If the last upstream sends no usage, the whole answer is counted locally."""
    upstream.script(failing(*BEGUN))
    second.script(ending(" was", " a fox."))
    stream = check_stream(ask(account))
    assert stream.usage["prompt_tokens"] == PROMPT_TOKENS
    assert stream.usage["completion_tokens"] == count_tokens(stream.text)
    check_charge(account, stream)


def test_usage_of_the_first_part_is_not_used(
    account: Account, upstream: LoopbackUpstream, second: LoopbackUpstream
) -> None:
    """Usage that the first upstream sent before it failed is not used for the whole answer."""
    running = [
        event for number, text in enumerate(BEGUN) for event in (said(text), usage_chunk(usage_of(20, number + 1)))
    ]
    upstream.script(Sse([ROLE, *running, Reset()]))
    second.script(ending(*[" fox"] * 20))
    stream = check_stream(ask(account))
    assert stream.usage["completion_tokens"] == pytest.approx(SAID_TOKENS + 20, abs=1)
    check_charge(account, stream)


def test_stream_is_continued_twice(
    account: Account, upstream: LoopbackUpstream, second: LoopbackUpstream, third: LoopbackUpstream
) -> None:
    """A continuation that fails too is continued by the third route, which gets everything that was delivered."""
    upstream.script(failing("One", " two"))
    second.script(failing(" three", failure="closed"))
    said_tokens = count_tokens("One two three")
    third.script(ending(" four.", usage=usage_of(30 + said_tokens, 3)))
    stream = check_stream(ask(account))
    assert stream.text == "One two three four."
    assert third.requests[0].json["messages"][-1]["content"] == "One two three"
    assert third.requests[0].json["max_tokens"] == MAX_TOKENS - said_tokens
    assert (stream.usage["prompt_tokens"], stream.usage["completion_tokens"]) == (30, 3 + said_tokens)
    check_charge(account, stream)


@pytest.mark.parametrize("seam", [("Caf", "é 🦊 日本"), ("Café 🦊", " 日本"), ("日", "本語")])
def test_multibyte_characters_at_the_join(
    account: Account, upstream: LoopbackUpstream, second: LoopbackUpstream, seam: tuple[str, str]
) -> None:
    """Multibyte characters on either side of the join arrive intact, and the next upstream gets them intact."""
    upstream.script(failing(seam[0], failure="closed within a character"))
    second.script(ending(seam[1]))
    assert check_stream(ask(account)).text == "".join(seam)
    assert second.requests[0].json["messages"][-1]["content"] == seam[0]


def test_stream_without_text_is_started_anew(
    account: Account, upstream: LoopbackUpstream, second: LoopbackUpstream
) -> None:
    """A stream that had begun without any text is requested anew, with its whole limit."""
    upstream.script(Sse([ROLE, chunk({"reasoning_content": "Hm."}), Reset()]))
    second.script(ending("All of it.", usage=usage_of(20, 4)))
    stream = check_stream(ask(account))
    assert stream.text == "All of it."
    [request] = second.requests
    assert request.json["messages"][-1] == MESSAGES[-1]
    assert request.json["max_tokens"] == MAX_TOKENS
    assert "continue_final_message" not in request.json
    check_charge(account, stream)


def test_text_is_delivered_before_the_continuation(
    account: Account, upstream: LoopbackUpstream, second: LoopbackUpstream
) -> None:
    """The text of the first upstream is delivered before the second has sent anything."""
    pause = Pause()
    upstream.script(failing(*BEGUN))
    second.script(Sse([pause, ROLE, said(" was a fox."), STOP]))
    with account.api.open_chat(model="forte", stream=True) as connection:
        begun = read_until(connection, b'" there"')
        pause.wait_until_reached()
        pause.release()
        assert b" was a fox." not in begun
        assert b"[DONE]" in read_all(connection)


def test_sdk_sees_one_answer(account: Account, upstream: LoopbackUpstream, second: LoopbackUpstream) -> None:
    """The SDK's caller gets the chunks of one completion and no error."""
    upstream.script(failing(*BEGUN))
    second.script(ending(" was a fox."))
    http_client = openai.DefaultHttpxClient(trust_env=False, verify=False)
    base_url, key = account.service.base_url, account.api.key
    with openai.OpenAI(base_url=base_url, api_key=key, http_client=http_client, max_retries=0) as client:
        stream = client.chat.completions.create(
            model="forte", messages=[{"role": "user", "content": "Go."}], stream=True
        )
        chunks = list(stream)
    assert len({part.id for part in chunks}) == 1
    text = "".join(choice.delta.content or "" for part in chunks for choice in part.choices)
    assert text == "Once upon a time there was a fox."


NOT_CONTINUED: dict[str, dict[str, Any]] = {
    "tools": {"tools": [{"type": "function", "function": {"name": "f"}}]},
    "response_format": {"response_format": {"type": "json_object"}},
    "no route that continues": {"model": "mezzo"},
    "max_tokens used up": {"max_tokens": SAID_TOKENS},
}


@pytest.mark.parametrize("why", NOT_CONTINUED)
def test_stream_that_cannot_be_continued(
    account: Account, upstream: LoopbackUpstream, second: LoopbackUpstream, why: str
) -> None:
    """Such a stream ends with an error event, no other upstream is asked, and what was delivered is charged."""
    upstream.script(failing(*BEGUN))
    assert check_broken_stream(ask(account, **NOT_CONTINUED[why])).text == "".join(BEGUN)
    assert second.requests == []
    assert -account.charge()["amount_nano"] > 0


def test_silence_mid_stream_ends_it(account: Account, upstream: LoopbackUpstream) -> None:
    """An upstream that falls silent after its first words is given up after its idle timeout."""
    upstream.script(Sse([ROLE, *map(said, BEGUN), Pause()]))
    assert check_broken_stream(ask(account, model="mezzo")).text == "".join(BEGUN)
    upstream.wait_for_disconnect()


def test_plain_reply_is_not_continued(account: Account, upstream: LoopbackUpstream, second: LoopbackUpstream) -> None:
    """A plain reply that breaks off is a 502 or comes whole from the next route; parts are never joined."""
    upstream.script(failing(*BEGUN))
    account.api.chat(model="forte").error(502, "api_error")
    assert second.requests == []
    assert account.charges == []


DEAF: dict[str, Reply] = {"500": Status(500), "400": Status(400), "429": Status(429), "dying": failing(" was")}


@pytest.mark.parametrize("answer", DEAF)
def test_failing_continuations_end_the_stream(
    account: Account, upstream: LoopbackUpstream, second: LoopbackUpstream, third: LoopbackUpstream, answer: str
) -> None:
    """If no route can continue, the stream ends with an error event and only what was delivered is charged."""
    upstream.script(failing(*BEGUN))
    second.always(DEAF[answer])
    third.always(Status(500))
    broken = check_broken_stream(ask(account))
    assert broken.text == "".join(BEGUN) + (" was" if answer == "dying" else "")
    assert -account.charge()["amount_nano"] == forte_nano(PROMPT_TOKENS, count_tokens(broken.text))


def test_client_leaves_during_the_continuation(
    account: Account, upstream: LoopbackUpstream, second: LoopbackUpstream
) -> None:
    """A client that leaves during the continuation ends it at once and pays for the text of both upstreams."""
    pause = Pause()
    upstream.script(failing(*BEGUN))
    second.script(Sse([ROLE, said(" was"), pause, said(" a fox."), STOP]))
    with account.api.open_chat(model="forte", stream=True) as connection:
        read_until(connection, b'" was"')
        pause.wait_until_reached()
    second.wait_for_disconnect()
    pause.release()
    account.wait_until_ended()
    said_tokens = count_tokens("".join(BEGUN) + " was")
    assert -account.charge()["amount_nano"] == forte_nano(PROMPT_TOKENS, said_tokens)


def test_continuations_are_counted(account: Account, upstream: LoopbackUpstream, second: LoopbackUpstream) -> None:
    """The metrics count the continued streams of each provider."""
    api = RawClient(account.service.port, None)
    name = b'cadenza_continued_total{provider="second"} '

    def continued() -> float:
        lines = api.get("/metrics").body.splitlines()
        return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))

    before = continued()
    upstream.script(failing(*BEGUN))
    second.script(ending(" was a fox."))
    check_stream(ask(account))
    assert continued() == before + 1
