"""What a reply costs: the upstream's usage at the price of the class or, without usage, what was delivered."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.account import PROMPT_TOKENS, Account, forte_nano, open_account, prompt_bytes
from tests.loopback import (
    ROLE,
    STOP,
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
    usage_chunk,
    usage_of,
)
from tests.raw_client import read_until
from tests.service import CREDIT_NANO, Service
from tests.service_config import CHARACTER
from tests.tokens import count_prompt, count_tokens

RESERVED_REQUESTS = 8
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
    "a usage and no answer": Sse([usage_chunk(USAGE)]),
    "the role, then a reset": Sse([ROLE, Reset()]),
}


@pytest.fixture
def account(service: Service) -> Iterator[Account]:
    with open_account(service) as opened:
        yield opened


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", USAGE_COST_NANO)
def test_reply_costs_its_usage(account: Account, upstream: LoopbackUpstream, model: str, stream: bool) -> None:
    """The charge is the upstream's usage at the price of the class, to the nano-dollar, and not estimated."""
    assert account.api.chat(model=model, stream=stream).status == 200
    charge = account.charge()
    assert charge["amount_nano"] == -USAGE_COST_NANO[model]
    assert charge["class_id"] == ("forte" if model == "auto" else model)
    assert (charge["prompt_tokens"], charge["cached_tokens"], charge["completion_tokens"]) == (11, 3, 7)
    assert charge["estimated"] is False


def test_charge_has_the_id_of_the_reply(account: Account, upstream: LoopbackUpstream) -> None:
    """A charge carries the completion id of its reply."""
    reply = account.api.chat()
    assert account.charge()["completion_id"] == reply.json["id"]


def test_replies_add_up(account: Account, upstream: LoopbackUpstream) -> None:
    """Each reply has one charge, and their sum is what was spent."""
    for model in ("mezzo", "forte", "fortissimo") * 2:
        account.api.chat(model=model)
    amounts = [-charge["amount_nano"] for charge in account.charges]
    assert amounts == [USAGE_COST_NANO[model] for model in ("mezzo", "forte", "fortissimo")] * 2
    assert account.spent_nano == sum(amounts)


def test_last_usage_of_a_stream_is_charged(account: Account, upstream: LoopbackUpstream) -> None:
    """Usage on every chunk is cumulative: only the last is charged."""
    words = [{**said("word "), "usage": usage_of(11, number)} for number in range(1, 6)]
    upstream.script(Sse([ROLE, *words, STOP, usage_chunk(usage_of(11, 6))]))
    account.api.chat(stream=True)
    assert account.charge()["amount_nano"] == -forte_nano(11, 6)


@pytest.mark.parametrize("empty", [None, {}])
def test_empty_usage_does_not_replace_a_good_one(account: Account, upstream: LoopbackUpstream, empty: Any) -> None:
    """A chunk with an empty usage leaves the last one in force."""
    upstream.script(Sse([ROLE, {**said("hi"), "usage": usage_of(11, 6)}, {**STOP, "usage": empty}]))
    account.api.chat(stream=True)
    assert account.charge()["amount_nano"] == -forte_nano(11, 6)
    assert account.charge()["estimated"] is False


@pytest.mark.parametrize("stream", [False, True])
def test_zero_usage_costs_nothing(account: Account, upstream: LoopbackUpstream, stream: bool) -> None:
    """Zero is a usage: the charge exists, is zero, and is not estimated."""
    zero = usage_of(0, 0)
    reply = Sse([ROLE, said(TEXT), STOP, usage_chunk(zero)]) if stream else Json(completion(TEXT, usage=zero))
    upstream.script(reply)
    assert account.api.chat(stream=stream).status == 200
    charge = account.charge()
    assert (charge["amount_nano"], charge["estimated"]) == (0, False)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("usage", [None, {}])
def test_reply_without_usage_is_counted_locally(
    account: Account, upstream: LoopbackUpstream, stream: bool, usage: Any
) -> None:
    """The prompt with its character layer and the text of the reply are charged, marked as estimated."""
    upstream.script(
        Sse([ROLE, said(TEXT), {**STOP, "usage": usage}]) if stream else Json(completion(TEXT, usage=usage))
    )
    account.api.chat(stream=stream)
    charge = account.charge()
    assert (charge["prompt_tokens"], charge["completion_tokens"]) == (PROMPT_TOKENS, count_tokens(TEXT))
    assert charge["amount_nano"] == -forte_nano(PROMPT_TOKENS, count_tokens(TEXT))
    assert charge["estimated"] is True


def test_client_is_told_what_it_is_charged_for(account: Account, upstream: LoopbackUpstream) -> None:
    """The usage of a reply without upstream usage equals its charge."""
    upstream.script(Json(completion(TEXT, usage=None)))
    shown = account.api.chat().json["usage"]
    charge = account.charge()
    assert (shown["prompt_tokens"], shown["completion_tokens"]) == (
        charge["prompt_tokens"],
        charge["completion_tokens"],
    )


def test_stream_is_held_and_charged_before_done(account: Account, upstream: LoopbackUpstream) -> None:
    """While a stream runs its quote is held, in a reserve for eight; when [DONE] is read the charge is in the store."""
    pause = Pause()
    upstream.script(Sse([ROLE, said("first word"), pause, STOP, usage_chunk(USAGE)]))
    with account.api.open_chat(stream=True, max_tokens=100) as connection:
        read_until(connection, b"first word")
        quote_nano = forte_nano(prompt_bytes(stream=True, max_tokens=100), 100)
        assert (account.held_nano, account.spent_nano) == (RESERVED_REQUESTS * quote_nano, 0)
        pause.release()
        read_until(connection, b"[DONE]")
        assert account.charge()["amount_nano"] == -USAGE_COST_NANO["forte"]


@pytest.mark.parametrize(("more_bytes", "is_counted"), [(0, False), (1, True)])
def test_expensive_prompt_is_held_by_its_tokens(
    account: Account, upstream: LoopbackUpstream, more_bytes: int, is_counted: bool
) -> None:
    """With credit for 256 requests like it a prompt is held by its bytes; with less, by its tokens."""
    most_bytes = (CREDIT_NANO // 256 - forte_nano(0, 100)) // forte_nano(1, 0)
    fields: dict[str, Any] = {"stream": True, "max_tokens": 100, "messages": [{"role": "user", "content": ""}]}
    content = fields["messages"][0]["content"] = "x" * (most_bytes + more_bytes - prompt_bytes(**fields))
    pause = Pause()
    upstream.script(Sse([ROLE, said("first word"), pause, STOP]))
    with account.api.open_chat(**fields) as connection:
        read_until(connection, b"first word")
        prompt_tokens = count_prompt([CHARACTER, content])
        quote_nano = forte_nano(prompt_tokens if is_counted else most_bytes, 100)
        requests = RESERVED_REQUESTS if is_counted else 1  # by its tokens it is cheap, and more of them are reserved
        assert account.held_nano == requests * quote_nano
        pause.release()
        read_until(connection, b"[DONE]")
    assert account.charge()["amount_nano"] == -forte_nano(prompt_tokens, 2)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("failure", FAILURES)
def test_failure_before_any_content_costs_nothing(
    account: Account, upstream: LoopbackUpstream, failure: str, stream: bool
) -> None:
    """A 502 has no charge, whatever usage the upstream sent."""
    upstream.always(FAILURES[failure])
    account.api.chat(stream=stream).error(502, "api_error")
    assert (account.charges, account.spent_nano) == ([], 0)


@pytest.mark.parametrize(
    ("status", "told", "type_"), [(429, 429, "rate_limit_error"), (422, 400, "invalid_request_error")]
)
def test_upstream_refusal_costs_nothing(
    account: Account, upstream: LoopbackUpstream, status: int, told: int, type_: str
) -> None:
    """Neither a 429 of the upstream nor its refusal of the request is charged."""
    upstream.always(Status(status))
    account.api.chat().error(told, type_)
    assert account.charges == []


def test_incomplete_body_costs_nothing(account: Account, upstream: LoopbackUpstream) -> None:
    """A plain reply that breaks off costs nothing."""
    upstream.always(Cut(Good(TEXT), 200))
    account.api.chat().error(502, "api_error")
    assert account.charges == []


def test_disconnect_mid_stream_is_charged_as_delivered(account: Account, upstream: LoopbackUpstream) -> None:
    """The prompt and the delivered tokens are charged by the local count."""
    upstream.script(Sse([ROLE, said(TEXT), Pause()]))
    with account.api.open_chat(stream=True) as connection:
        read_until(connection, b"notes.")
    account.wait_until_ended()
    charge = account.charge()
    assert charge["amount_nano"] == -forte_nano(PROMPT_TOKENS, count_tokens(TEXT))
    assert charge["estimated"] is True


@pytest.mark.parametrize("stream", [False, True])
def test_disconnect_before_the_reply_costs_the_prompt(
    account: Account, upstream: LoopbackUpstream, stream: bool
) -> None:
    """A client that disconnects while the upstream is silent pays for the prompt, by our own count."""
    pause = Pause()
    upstream.script(Raw([pause]))
    with account.api.open_chat(stream=stream):
        pause.wait_until_reached()
        assert account.held_nano > 0
    account.wait_until_ended()
    charge = account.charge()
    assert charge["amount_nano"] == -forte_nano(PROMPT_TOKENS, 0)
    assert (charge["prompt_tokens"], charge["completion_tokens"], charge["estimated"]) == (PROMPT_TOKENS, 0, True)


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "refusal"])
def test_disconnect_during_reasoning_is_charged(account: Account, upstream: LoopbackUpstream, field: str) -> None:
    """Reasoning and refusals that were delivered are charged like any other text."""
    pause = Pause()
    upstream.script(Sse([chunk({field: TEXT}), pause]))
    with account.api.open_chat(stream=True) as connection:
        read_until(connection, b'"%b":' % field.encode())
        pause.wait_until_reached()
    account.wait_until_ended()
    assert account.charge()["completion_tokens"] == count_tokens(TEXT)


def test_disconnect_within_one_long_chunk_is_charged(account: Account, upstream: LoopbackUpstream) -> None:
    """A client that reads most of a single long chunk and disconnects pays for the chunk."""
    text = "hello " * 100_000
    upstream.script(Sse([ROLE, said(text), STOP, usage_chunk(usage_of(11, count_tokens(text)))]))
    with account.api.open_chat(stream=True) as connection:
        read_bytes = 0
        while read_bytes < 500_000:
            read_bytes += len(connection.recv(65_536))
    account.wait_until_ended()
    assert account.charge()["completion_tokens"] == count_tokens(text)


def test_disconnect_is_charged_up_to_max_tokens(account: Account, upstream: LoopbackUpstream) -> None:
    """If the upstream ignores max_tokens, a disconnect is charged no more than max_tokens."""
    upstream.script(Sse([ROLE, said("hello " * 1_000), Pause()]))
    with account.api.open_chat(stream=True, max_tokens=16) as connection:
        read_until(connection, b"hello ")
    account.wait_until_ended()
    assert account.charge()["amount_nano"] == -forte_nano(PROMPT_TOKENS, 16)


@pytest.mark.parametrize("end", [Reset(), Close(), {"error": {"message": "no"}}, b"data: {nonsense\n\n"])
def test_upstream_failure_mid_stream_is_charged_as_delivered(
    account: Account, upstream: LoopbackUpstream, end: Any
) -> None:
    """When the error event is read, the prompt and the delivered tokens are charged by the local count."""
    upstream.script(Sse([ROLE, said(TEXT), end]))
    assert b'"api_error"' in account.api.chat(stream=True).body
    charge = account.charge()
    assert charge["amount_nano"] == -forte_nano(PROMPT_TOKENS, count_tokens(TEXT))
    assert charge["estimated"] is True


def test_failure_after_the_finish_reason_is_charged_in_full(account: Account, upstream: LoopbackUpstream) -> None:
    """Everything was delivered and is charged, by the local count if no usage arrived."""
    upstream.script(Sse([ROLE, said(TEXT), STOP, Reset()]))
    assert account.api.chat(stream=True).body.endswith(b"data: [DONE]\n\n")
    assert account.charge()["completion_tokens"] == count_tokens(TEXT)


def test_failed_request_that_is_retried_is_charged_once(account: Account, upstream: LoopbackUpstream) -> None:
    """A request that failed and is sent again by the client is charged once, for the answer."""
    upstream.script(Status(500), Good(TEXT))
    account.api.chat().error(502, "api_error")
    assert account.api.chat().status == 200
    assert account.charge()["amount_nano"] == -USAGE_COST_NANO["forte"]
