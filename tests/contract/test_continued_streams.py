"""A stream whose upstream fails is continued by another: one stream, counted and charged as one answer."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.account import PROMPT_TOKENS, Account, forte_nano, open_account
from tests.ledger_reader import usage_cost_nano
from tests.loopback import ROLE, STOP, Event, LoopbackUpstream, Pause, Reset, Sse, said, usage_chunk, usage_of
from tests.raw_client import RawClient, read_all, read_until
from tests.schemas import Stream, check_broken_stream, check_stream
from tests.service import Service
from tests.service_config import RouteSpec, ServiceSpec
from tests.tokens import count_tokens

IDLE_S = 3.5  # of an upstream that falls silent
BEGUN = ["Once upon", " a time", " there"]
SAID_TOKENS = count_tokens("".join(BEGUN))
MAX_TOKENS = 40
COST_OF = "SELECT provider_cost_nano FROM usage WHERE completion_id = ?"
FAILURES: dict[str, list[Event]] = {"reset": [Reset()], "silent": [Pause()]}
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


def test_silence_mid_stream_ends_it(account: Account, upstream: LoopbackUpstream) -> None:
    """An upstream that falls silent after its first words is given up after its idle timeout."""
    upstream.script(Sse([ROLE, *map(said, BEGUN), Pause()]))
    assert check_broken_stream(ask(account, model="mezzo")).text == "".join(BEGUN)
    upstream.wait_for_disconnect()


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
