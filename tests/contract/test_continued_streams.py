"""A stream whose upstream fails is continued by another: one stream, counted and charged as one answer."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.account import PROMPT_TOKENS, Account, forte_nano, open_account
from tests.loopback import ROLE, STOP, Event, LoopbackUpstream, Pause, Reset, Sse, said, usage_chunk, usage_of
from tests.raw_client import read_until
from tests.schemas import check_broken_stream
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
