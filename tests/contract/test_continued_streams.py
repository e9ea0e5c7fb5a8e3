"""A stream whose upstream dies goes on elsewhere: one seamless stream, counted and charged as one answer."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from cadenza.core.tokens import count_tokens
from tests.contract.purse import PROMPT_TOKENS, forte_nano
from tests.contract.stories import DEATHS, FINISH, ROLE, counts, dying, ending
from tests.contract.till import Till
from tests.contract.wire import MESSAGES, Wire, read_all, read_until
from tests.loopback import LoopbackUpstream, Pause, Reply, Reset, Sse, Status, chunk, said
from tests.schemas import Stream, check_broken_stream, check_stream
from tests.service import CHARACTER, RouteSpec, Service, ServiceSpec

SILENCE_S = 0.6
BEGUN = ["Once upon", " a time", " there"]
SAID_TOKENS = count_tokens("".join(BEGUN))
MAX_TOKENS = 40
SMALL_TOKENS = 2_000
SMALL_TOML = f"""
[[classes.fortissimo.routes]]
provider = "first"
model = "one"
context_tokens = 128_000
max_output_tokens = 8_192

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
    """forte: three routes, of which the later two can go on with an answer. mezzo: two, of which none can.

    fortissimo: two, of which the second can, in a small window.
    """
    spec = ServiceSpec(
        providers={"first": shared_upstream.base_url, "second": second.base_url, "third": third.base_url},
        routes={
            "forte": [
                RouteSpec("first", "one", 0, SILENCE_S),
                RouteSpec("second", "two", 1, SILENCE_S, continues=True),
                RouteSpec("third", "three", 2, SILENCE_S, continues=True),
            ],
            "mezzo": [RouteSpec("first", "one", 0, SILENCE_S), RouteSpec("second", "two", 1)],
        },
        more_toml=SMALL_TOML,
    )
    with Service(spec) as service:
        yield service


@pytest.fixture
def till(continued: Service, second: LoopbackUpstream, third: LoopbackUpstream) -> Iterator[Till]:
    second.reset()
    third.reset()
    continued.reload()
    till = Till(continued)
    yield till
    till.prove()


def ask(till: Till, **fields: Any) -> bytes:
    return till.wire.chat(**{"model": "forte", "stream": True, "max_tokens": MAX_TOKENS, **fields}).body


def check_charge(till: Till, stream: Stream) -> None:
    """The store has one charge, of just what the client was shown."""
    shown = stream.usage
    assert till.charge_nano() == forte_nano(shown["prompt_tokens"], shown["completion_tokens"])


@pytest.mark.parametrize("death", DEATHS)
def test_a_stream_goes_on(till: Till, upstream: LoopbackUpstream, second: LoopbackUpstream, death: str) -> None:
    """However the first upstream dies, the client gets one stream of both texts, and pays for one prompt and both."""
    upstream.script(dying(*BEGUN, death=death))
    second.script(ending(" was", " a fox.", usage=counts(20 + SAID_TOKENS, 5, 7)))
    stream = check_stream(ask(till))
    assert stream.text == "Once upon a time there was a fox."
    assert stream.finish_reason == "stop"
    assert stream.usage == {
        "prompt_tokens": 20,
        "completion_tokens": 5 + SAID_TOKENS,
        "total_tokens": 25 + SAID_TOKENS,
        "prompt_tokens_details": {"cached_tokens": 7},
    }
    check_charge(till, stream)


def test_a_small_window_is_measured_by_the_tokens_of_the_prompt(
    till: Till, upstream: LoopbackUpstream, second: LoopbackUpstream
) -> None:
    """A stream goes on where prompt and text fit by their tokens, though the bytes of the prompt would not."""
    content, begun = "word " * 250, " word" * 800
    upstream.script(dying(begun))
    second.script(ending(" The end."))
    messages = [{"role": "user", "content": content}]
    stream = check_stream(ask(till, model="fortissimo", messages=messages, max_tokens=2_000))
    assert len(content) + count_tokens(begun) > SMALL_TOKENS
    assert stream.text == begun + " The end."


def test_what_the_second_upstream_is_asked(till: Till, upstream: LoopbackUpstream, second: LoopbackUpstream) -> None:
    """It gets the same messages, then the delivered text to go on with, and what is left of the output limit."""
    upstream.script(dying(*BEGUN))
    second.script(ending(" was a fox."))
    ask(till, temperature=0.5)
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


def test_an_uncounted_continuation_is_counted_here(
    till: Till, upstream: LoopbackUpstream, second: LoopbackUpstream
) -> None:
    """Where the last upstream gives no counts, the whole answer is our own count."""
    upstream.script(dying(*BEGUN))
    second.script(ending(" was", " a fox."))
    stream = check_stream(ask(till))
    assert stream.usage["prompt_tokens"] == PROMPT_TOKENS
    assert stream.usage["completion_tokens"] == count_tokens(stream.text)
    check_charge(till, stream)


def test_counts_of_the_part_are_not_those_of_the_whole(
    till: Till, upstream: LoopbackUpstream, second: LoopbackUpstream
) -> None:
    """Counts that the first upstream gave while it ran do not stand for the answer that another finished."""
    running = [event for number, text in enumerate(BEGUN) for event in (said(text), counts(20, number + 1))]
    upstream.script(Sse([ROLE, *running, Reset()]))
    second.script(ending(*[" fox"] * 20))
    stream = check_stream(ask(till))
    assert stream.usage["completion_tokens"] == pytest.approx(SAID_TOKENS + 20, abs=1)
    check_charge(till, stream)


def test_two_seams(till: Till, upstream: LoopbackUpstream, second: LoopbackUpstream, third: LoopbackUpstream) -> None:
    """A continuation that dies too is continued by the third route, given all that was delivered."""
    upstream.script(dying("One", " two"))
    second.script(dying(" three", death="closed"))
    said_tokens = count_tokens("One two three")
    third.script(ending(" four.", usage=counts(30 + said_tokens, 3)))
    stream = check_stream(ask(till))
    assert stream.text == "One two three four."
    assert third.requests[0].json["messages"][-1]["content"] == "One two three"
    assert third.requests[0].json["max_tokens"] == MAX_TOKENS - said_tokens
    assert (stream.usage["prompt_tokens"], stream.usage["completion_tokens"]) == (30, 3 + said_tokens)
    check_charge(till, stream)


@pytest.mark.parametrize("seam", [("Caf", "é 🦊 日本"), ("Café 🦊", " 日本"), ("日", "本語")])
def test_letters_of_many_bytes_at_the_seam(
    till: Till, upstream: LoopbackUpstream, second: LoopbackUpstream, seam: tuple[str, str]
) -> None:
    """Whatever stands on either side of the seam arrives letter by letter, and the next upstream is told it so."""
    upstream.script(dying(seam[0], death="closed within a letter"))
    second.script(ending(seam[1]))
    assert check_stream(ask(till)).text == "".join(seam)
    assert second.requests[0].json["messages"][-1]["content"] == seam[0]


def test_nothing_delivered_yet(till: Till, upstream: LoopbackUpstream, second: LoopbackUpstream) -> None:
    """A stream that had begun, but said nothing, is asked anew, from the start and with all of its limit."""
    upstream.script(Sse([ROLE, chunk({"reasoning_content": "Hm."}), Reset()]))
    second.script(ending("All of it.", usage=counts(20, 4)))
    stream = check_stream(ask(till))
    assert stream.text == "All of it."
    [request] = second.requests
    assert request.json["messages"][-1] == MESSAGES[-1]
    assert request.json["max_tokens"] == MAX_TOKENS
    assert "continue_final_message" not in request.json
    check_charge(till, stream)


def test_the_seam_waits_for_nothing(till: Till, upstream: LoopbackUpstream, second: LoopbackUpstream) -> None:
    """What the first upstream said is with the client before the second has said a word."""
    pause = Pause()
    upstream.script(dying(*BEGUN))
    second.script(Sse([pause, ROLE, said(" was a fox."), FINISH]))
    with till.wire.open_chat(model="forte", stream=True) as connection:
        begun = read_until(connection, b'" there"')
        pause.wait_until_reached()
        pause.release()
        assert b" was a fox." not in begun
        assert b"[DONE]" in read_all(connection)


def test_the_sdk_sees_one_answer(till: Till, upstream: LoopbackUpstream, second: LoopbackUpstream) -> None:
    """The SDK's caller gets the chunks of one completion and no error."""
    upstream.script(dying(*BEGUN))
    second.script(ending(" was a fox."))
    http_client = openai.DefaultHttpxClient(trust_env=False)
    base_url, key = till.service.base_url, till.service.key
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
def test_what_is_not_continued(till: Till, upstream: LoopbackUpstream, second: LoopbackUpstream, why: str) -> None:
    """It ends with an error event, nobody else is asked, and what was delivered is charged."""
    upstream.script(dying(*BEGUN))
    assert check_broken_stream(ask(till, **NOT_CONTINUED[why])).text == "".join(BEGUN)
    assert second.requests == []
    assert till.charge_nano() > 0


def test_a_whole_reply_is_not_continued(till: Till, upstream: LoopbackUpstream, second: LoopbackUpstream) -> None:
    """A non-streaming reply that breaks off is a 502 or comes whole from the next route; nothing half is joined."""
    upstream.script(dying(*BEGUN))
    till.wire.chat(model="forte").error(502, "api_error")
    assert second.requests == []
    assert till.charges_nano == []


DEAF: dict[str, Reply] = {"500": Status(500), "400": Status(400), "429": Status(429), "dying": dying(" was")}


@pytest.mark.parametrize("answer", DEAF)
def test_where_nobody_can_go_on(
    till: Till, upstream: LoopbackUpstream, second: LoopbackUpstream, third: LoopbackUpstream, answer: str
) -> None:
    """A stream that no route continues ends with an error event, and just what was delivered is charged."""
    upstream.script(dying(*BEGUN))
    second.always(DEAF[answer])
    third.always(Status(500))
    broken = check_broken_stream(ask(till))
    assert broken.text == "".join(BEGUN) + (" was" if answer == "dying" else "")
    assert till.charge_nano() == forte_nano(PROMPT_TOKENS, count_tokens(broken.text))


def test_leaving_after_the_seam(till: Till, upstream: LoopbackUpstream, second: LoopbackUpstream) -> None:
    """A client that goes away while the second upstream speaks ends it at once, and pays what it got from both."""
    pause = Pause()
    upstream.script(dying(*BEGUN))
    second.script(Sse([ROLE, said(" was"), pause, said(" a fox."), FINISH]))
    with till.wire.open_chat(model="forte", stream=True) as connection:
        read_until(connection, b'" was"')
        pause.wait_until_reached()
    second.wait_for_disconnect()
    pause.release()
    till.wait_until_ended()
    said_tokens = count_tokens("".join(BEGUN) + " was")
    assert till.charge_nano() == forte_nano(PROMPT_TOKENS, said_tokens)


def test_the_seam_is_counted(till: Till, upstream: LoopbackUpstream, second: LoopbackUpstream) -> None:
    """The metrics say which provider went on with streams of others, and that the other broke off."""
    wire = Wire(till.service.port, None)
    name = b'cadenza_continued_total{provider="second"} '

    def continued() -> float:
        lines = wire.get("/metrics").body.splitlines()
        return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))

    before = continued()
    upstream.script(dying(*BEGUN))
    second.script(ending(" was a fox."))
    check_stream(ask(till))
    assert continued() == before + 1
