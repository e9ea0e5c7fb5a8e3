"""A stream whose upstream fails is continued by another: one stream, counted and charged as one answer."""

from collections.abc import Iterator

import pytest

from tests.account import PROMPT_TOKENS, Account, forte_nano, open_account
from tests.loopback import ROLE, STOP, LoopbackUpstream, Pause, Reset, Sse, said, usage_chunk, usage_of
from tests.raw_client import read_until
from tests.schemas import check_broken_stream
from tests.service import Service
from tests.service_config import RouteSpec, ServiceSpec
from tests.tokens import count_tokens

IDLE_S = 3.0  # of an upstream that falls silent
BEGUN = ["Once upon", " a time", " there"]
SAID_TOKENS = count_tokens("".join(BEGUN))
COST_OF = "SELECT provider_cost_nano FROM usage WHERE completion_id = ?"
FIRST_COSTS = 'cost_input = "0.10"\ncost_output = "0.40"\n'
SECOND_COSTS = 'cost_input = "0.20"\ncost_output = "0.80"\ncost_cached = "0.05"\n'
BROKEN = Sse([ROLE, *map(said, BEGUN), Reset()])


@pytest.fixture(scope="module")
def continued(shared_upstream: LoopbackUpstream, backup: LoopbackUpstream) -> Iterator[Service]:
    """forte: two routes, the second can continue an answer. mezzo: one that may not be silent for long."""
    spec = ServiceSpec(
        providers={"first": shared_upstream.base_url, "second": backup.base_url},
        routes={
            "forte": [
                RouteSpec("first", "one", more_toml=FIRST_COSTS),
                RouteSpec("second", "two", 1, continues=True, more_toml=SECOND_COSTS),
            ],
            "mezzo": [RouteSpec("first", "hasty", silence_s=IDLE_S)],
        },
    )
    with Service(spec) as service:
        yield service


@pytest.fixture
def account(continued: Service, backup: LoopbackUpstream) -> Iterator[Account]:
    backup.reset()
    continued.reload()
    with open_account(continued) as opened:
        yield opened


def test_both_providers_of_a_continued_stream_cost_something(
    account: Account, upstream: LoopbackUpstream, backup: LoopbackUpstream
) -> None:
    """The first counts the prompt and what it said; the second counts both as its prompt, and the rest."""
    upstream.script(BROKEN)
    backup.script(Sse([ROLE, said(" was"), said(" a fox."), STOP, usage_chunk(usage_of(20 + SAID_TOKENS, 5, 7))]))
    account.api.chat(stream=True, max_tokens=40)
    [row] = account.service.ledger.query(COST_OF, account.charge()["completion_id"])
    first_nano = PROMPT_TOKENS * 100 + SAID_TOKENS * 400
    assert row["provider_cost_nano"] == first_nano + (13 + SAID_TOKENS) * 200 + 7 * 50 + 5 * 800


def test_silence_mid_stream_ends_it(account: Account, upstream: LoopbackUpstream) -> None:
    """An upstream that falls silent after its first words is given up after its idle timeout."""
    upstream.script(Sse([ROLE, *map(said, BEGUN), Pause()]))
    assert check_broken_stream(account.api.chat(model="mezzo", stream=True).body).text == "".join(BEGUN)
    upstream.wait_for_disconnect()


def test_client_leaves_during_the_continuation(
    account: Account, upstream: LoopbackUpstream, backup: LoopbackUpstream
) -> None:
    """A client that leaves during the continuation ends it at once and pays for the text of both upstreams."""
    pause = Pause()
    upstream.script(BROKEN)
    backup.script(Sse([ROLE, said(" was"), pause, said(" a fox."), STOP]))
    with account.api.open_chat(model="forte", stream=True) as connection:
        read_until(connection, b'" was"')
        pause.wait_until_reached()
    backup.wait_for_disconnect()
    pause.release()
    account.wait_until_ended()
    said_tokens = count_tokens("".join(BEGUN) + " was")
    assert -account.charge()["amount_nano"] == forte_nano(PROMPT_TOKENS, said_tokens)
