"""What a reply costs: the upstream's count at the price of the class, and what was delivered where it gave none."""

from collections.abc import Iterator
from typing import Any

import pytest

from cadenza.core.tokens import count_prompt, count_tokens
from tests.contract.purse import CREDIT_NANO, PROMPT_TOKENS, Purse, forte_nano, open_purse, prompt_bytes
from tests.contract.wire import read_until
from tests.loopback import (
    USAGE,
    Close,
    Cut,
    Good,
    Json,
    LoopbackUpstream,
    Pause,
    Raw,
    Reply,
    Reset,
    Sse,
    Status,
    chunk,
    completion,
    said,
)
from tests.service import CHARACTER, Service

ROLE = chunk({"role": "assistant", "content": ""})
STOP = chunk(finish="stop")
TEXT = "Music is the silence between the notes."
USAGE_COST_NANO = {
    "mezzo": 8 * 100 + 3 * 20 + 7 * 210,  # its cached tokens have a price of their own
    "forte": 11 * 1_070 + 7 * 3_450,
    "fortissimo": 11 * 3_450 + 7 * 17_250,
    "auto": 11 * 1_070 + 7 * 3_450,
}
FAILURES: dict[str, Reply] = {
    "status 500": Status(500),
    "status 401": Status(401),
    "an error in a 200": Json({"error": {"message": "no", "usage": USAGE}}),
    "no answer, but a usage": Json({"choices": [], "usage": USAGE}),
    "closed without a word": Raw([Close()]),
    "reset without a word": Raw([Reset()]),
    "a stream of nothing": Sse([]),
    "a usage and no answer": Sse([chunk(choices=[], usage=USAGE)]),
    "the role, then a reset": Sse([ROLE, Reset()]),
}


@pytest.fixture
def purse(service: Service) -> Iterator[Purse]:
    with open_purse(service) as opened:
        yield opened


def counts(prompt: Any, completion: Any, cached: Any = 0) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", USAGE_COST_NANO)
def test_a_reply_costs_what_the_upstream_counted(
    purse: Purse, upstream: LoopbackUpstream, model: str, stream: bool
) -> None:
    """The charge is the upstream's usage at the price of the class, to the nano-dollar, and is no estimate."""
    assert purse.wire.chat(model=model, stream=stream).status == 200
    charge = purse.charge()
    assert charge["amount_nano"] == -USAGE_COST_NANO[model]
    assert charge["class"] == ("forte" if model == "auto" else model)
    assert (charge["prompt_tokens"], charge["cached_tokens"], charge["completion_tokens"]) == (11, 3, 7)
    assert charge["estimated"] is False


def test_the_charge_bears_the_id_of_the_reply(purse: Purse, upstream: LoopbackUpstream) -> None:
    """An accountant finds the reply of a charge by its id."""
    reply = purse.wire.chat()
    assert purse.charge()["request_id"] == reply.json["id"]


def test_replies_add_up(purse: Purse, upstream: LoopbackUpstream) -> None:
    """Each reply has one charge of its own, and together they are what was spent."""
    for model in ("mezzo", "forte", "fortissimo") * 2:
        purse.wire.chat(model=model)
    amounts = [-charge["amount_nano"] for charge in purse.charges]
    assert amounts == [USAGE_COST_NANO[model] for model in ("mezzo", "forte", "fortissimo")] * 2
    assert purse.spent_nano == sum(amounts)


def test_the_last_usage_of_a_stream_counts(purse: Purse, upstream: LoopbackUpstream) -> None:
    """Usage on every chunk is cumulative: only the last is charged, and nothing is summed."""
    words = [{**said("word "), "usage": counts(11, number)} for number in range(1, 6)]
    upstream.script(Sse([ROLE, *words, STOP, chunk(choices=[], usage=counts(11, 6))]))
    purse.wire.chat(stream=True)
    assert purse.charge()["amount_nano"] == -forte_nano(11, 6)


@pytest.mark.parametrize("empty", [None, {}])
def test_an_empty_usage_after_a_good_one_does_not_undo_it(purse: Purse, upstream: LoopbackUpstream, empty: Any) -> None:
    """A chunk that says nothing of the counts leaves the last ones in force."""
    upstream.script(Sse([ROLE, {**said("hi"), "usage": counts(11, 6)}, {**STOP, "usage": empty}]))
    purse.wire.chat(stream=True)
    assert purse.charge()["amount_nano"] == -forte_nano(11, 6)
    assert purse.charge()["estimated"] is False


@pytest.mark.parametrize("stream", [False, True])
def test_a_usage_of_zero_costs_nothing(purse: Purse, upstream: LoopbackUpstream, stream: bool) -> None:
    """Zero is a count: the charge is there, is zero, and is no estimate."""
    zero = counts(0, 0)
    reply = (
        Sse([ROLE, said(TEXT), STOP, chunk(choices=[], usage=zero)]) if stream else Json(completion(TEXT, usage=zero))
    )
    upstream.script(reply)
    assert purse.wire.chat(stream=stream).status == 200
    charge = purse.charge()
    assert (charge["amount_nano"], charge["amount"], charge["estimated"]) == (0, "0.00", False)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("usage", [None, {}])
def test_without_a_usage_our_own_count_is_charged(
    purse: Purse, upstream: LoopbackUpstream, stream: bool, usage: Any
) -> None:
    """The prompt with its character layer and the text of the reply, marked as estimated in the export."""
    upstream.script(
        Sse([ROLE, said(TEXT), {**STOP, "usage": usage}]) if stream else Json(completion(TEXT, usage=usage))
    )
    purse.wire.chat(stream=stream)
    charge = purse.charge()
    assert (charge["prompt_tokens"], charge["completion_tokens"]) == (PROMPT_TOKENS, count_tokens(TEXT))
    assert charge["amount_nano"] == -forte_nano(PROMPT_TOKENS, count_tokens(TEXT))
    assert charge["estimated"] is True


def test_the_client_is_shown_what_it_is_charged_for(purse: Purse, upstream: LoopbackUpstream) -> None:
    """The counts of a reply without usage are those of its charge."""
    upstream.script(Json(completion(TEXT, usage=None)))
    shown = purse.wire.chat().json["usage"]
    charge = purse.charge()
    assert (shown["prompt_tokens"], shown["completion_tokens"]) == (
        charge["prompt_tokens"],
        charge["completion_tokens"],
    )


def test_a_running_stream_is_held_and_charged_before_its_end(purse: Purse, upstream: LoopbackUpstream) -> None:
    """While it runs the quote is held and nothing is charged; when [DONE] is read the charge is in the store."""
    pause = Pause()
    upstream.script(Sse([ROLE, said("first word"), pause, STOP, chunk(choices=[], usage=USAGE)]))
    with purse.wire.open_chat(stream=True, max_tokens=100) as connection:
        read_until(connection, b"first word")
        assert (purse.held_nano, purse.spent_nano) == (forte_nano(prompt_bytes(stream=True, max_tokens=100), 100), 0)
        pause.release()
        read_until(connection, b"[DONE]")
        assert purse.charge()["amount_nano"] == -USAGE_COST_NANO["forte"]


@pytest.mark.parametrize(("more_bytes", "is_counted"), [(0, False), (1, True)])
def test_a_prompt_that_is_dear_to_its_account_is_held_by_its_count(
    purse: Purse, upstream: LoopbackUpstream, more_bytes: int, is_counted: bool
) -> None:
    """With credit for 256 requests like it a prompt is held by its bytes; with less, by the tokens that it has."""
    most_bytes = (CREDIT_NANO // 256 - forte_nano(0, 100)) // forte_nano(1, 0)
    fields: dict[str, Any] = {"stream": True, "max_tokens": 100, "messages": [{"role": "user", "content": ""}]}
    content = fields["messages"][0]["content"] = "x" * (most_bytes + more_bytes - prompt_bytes(**fields))
    pause = Pause()
    upstream.script(Sse([ROLE, said("first word"), pause, STOP]))
    with purse.wire.open_chat(**fields) as connection:
        read_until(connection, b"first word")
        prompt_tokens = count_prompt([CHARACTER, content])
        assert purse.held_nano == forte_nano(prompt_tokens if is_counted else most_bytes, 100)
        pause.release()
        read_until(connection, b"[DONE]")
    assert purse.charge()["amount_nano"] == -forte_nano(prompt_tokens, 2)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("failure", FAILURES)
def test_a_failure_before_any_content_costs_nothing(
    purse: Purse, upstream: LoopbackUpstream, failure: str, stream: bool
) -> None:
    """A 502 has no charge, whatever the upstream counted."""
    upstream.always(FAILURES[failure])
    purse.wire.chat(stream=stream).error(502, "api_error")
    assert (purse.charges, purse.spent_nano, purse.held_nano) == ([], 0, 0)


@pytest.mark.parametrize(
    ("status", "told", "type_"), [(429, 429, "rate_limit_error"), (422, 400, "invalid_request_error")]
)
def test_a_refusal_of_the_upstream_costs_nothing(
    purse: Purse, upstream: LoopbackUpstream, status: int, told: int, type_: str
) -> None:
    """Neither a saturated upstream nor one that finds fault with the request is paid."""
    upstream.always(Status(status))
    purse.wire.chat().error(told, type_)
    assert purse.charges == []


def test_half_a_body_costs_nothing(purse: Purse, upstream: LoopbackUpstream) -> None:
    """A non-streaming reply that breaks off was delivered to nobody."""
    upstream.always(Cut(Good(TEXT), 200))
    purse.wire.chat().error(502, "api_error")
    assert purse.charges == []


def test_who_leaves_amid_a_stream_pays_for_what_was_delivered(purse: Purse, upstream: LoopbackUpstream) -> None:
    """The prompt and the delivered tokens, by our own count."""
    upstream.script(Sse([ROLE, said(TEXT), Pause()]))
    with purse.wire.open_chat(stream=True) as connection:
        read_until(connection, b"notes.")
    purse.wait_until_ended()
    charge = purse.charge()
    assert charge["amount_nano"] == -forte_nano(PROMPT_TOKENS, count_tokens(TEXT))
    assert charge["estimated"] is True


@pytest.mark.parametrize("stream", [False, True])
def test_who_leaves_before_anything_pays_nothing(purse: Purse, upstream: LoopbackUpstream, stream: bool) -> None:
    """A client that goes while the upstream is silent has its hold back in full."""
    pause = Pause()
    upstream.script(Raw([pause]))
    with purse.wire.open_chat(stream=stream):
        pause.wait_until_reached()
        assert purse.held_nano > 0
    purse.wait_until_ended()
    assert (purse.charges, purse.spent_nano) == ([], 0)


def test_who_leaves_amid_a_thought_pays_nothing(purse: Purse, upstream: LoopbackUpstream) -> None:
    """Thoughts that are not shown are not delivered."""
    pause = Pause()
    upstream.script(Sse([chunk({"reasoning_content": TEXT}), pause]))
    with purse.wire.open_chat(stream=True) as connection:
        read_until(connection, b'"role":"assistant"')
        pause.wait_until_reached()
    purse.wait_until_ended()
    assert purse.charges == []


def test_who_leaves_amid_one_long_chunk_pays_for_it(purse: Purse, upstream: LoopbackUpstream) -> None:
    """A client cannot read most of a reply that came in one piece, hang up before its tail, and have it for nothing."""
    upstream.script(Sse([ROLE, said("hello " * 100_000), STOP, chunk(choices=[], usage=counts(11, 100_000))]))
    with purse.wire.open_chat(stream=True) as connection:
        read_bytes = 0
        while read_bytes < 500_000:
            read_bytes += len(connection.recv(65_536))
    purse.wait_until_ended()
    assert purse.charge()["completion_tokens"] == 100_000


def test_who_leaves_pays_no_more_than_was_allowed(purse: Purse, upstream: LoopbackUpstream) -> None:
    """An upstream that ignores max_tokens does not make it dearer to leave than to stay."""
    upstream.script(Sse([ROLE, said("hello " * 1_000), Pause()]))
    with purse.wire.open_chat(stream=True, max_tokens=16) as connection:
        read_until(connection, b"hello ")
    purse.wait_until_ended()
    assert purse.charge()["amount_nano"] == -forte_nano(PROMPT_TOKENS, 16)


@pytest.mark.parametrize("end", [Reset(), Close(), {"error": {"message": "no"}}, b"data: {nonsense\n\n"])
def test_an_upstream_that_dies_amid_a_stream_is_paid_for_what_was_delivered(
    purse: Purse, upstream: LoopbackUpstream, end: Any
) -> None:
    """The prompt and the delivered tokens, by our own count, when the error event is read."""
    upstream.script(Sse([ROLE, said(TEXT), end]))
    assert b'"api_error"' in purse.wire.chat(stream=True).body
    charge = purse.charge()
    assert charge["amount_nano"] == -forte_nano(PROMPT_TOKENS, count_tokens(TEXT))
    assert charge["estimated"] is True


def test_a_death_after_the_finish_reason_is_a_reply_like_any_other(purse: Purse, upstream: LoopbackUpstream) -> None:
    """All was delivered, so all of it is charged, by our own count where the usage did not come."""
    upstream.script(Sse([ROLE, said(TEXT), STOP, Reset()]))
    assert purse.wire.chat(stream=True).body.endswith(b"data: [DONE]\n\n")
    assert purse.charge()["completion_tokens"] == count_tokens(TEXT)


def test_the_route_that_answers_is_the_one_that_is_charged(purse: Purse, upstream: LoopbackUpstream) -> None:
    """A request that failed and is made again by the client is charged once, for the answer."""
    upstream.script(Status(500), Good(TEXT))
    purse.wire.chat().error(502, "api_error")
    assert purse.wire.chat().status == 200
    assert purse.charge()["amount_nano"] == -USAGE_COST_NANO["forte"]
