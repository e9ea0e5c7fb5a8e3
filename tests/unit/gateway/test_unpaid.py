"""The CPU time that refused bodies take is counted for their account, over all of its keys."""

import random
import time

import pytest

from cadenza.core.errors import RateLimited
from cadenza.core.rates import NS_PER_S
from cadenza.core.records import Usage
from cadenza.gateway.unpaid import BURST_S, PER_S, REQUEST_S, UnpaidWork
from cadenza.observe import Metrics
from cadenza.store.tables.keys import NewKey
from cadenza.upstreams.base import Piece
from tests.unit.gateway.client import Client
from tests.unit.gateway.clock import Clock
from tests.unit.gateway.funded_store import ACCOUNT_ID, FundedStore, add_key
from tests.unit.gateway.gateways import running_api
from tests.unit.gateway.scripted_upstream import ScriptedUpstream


def test_a_budget_is_used_up_and_refills() -> None:
    """Beyond ten seconds an account waits until it has something left; another account has its own."""
    clock = Clock()
    unpaid = UnpaidWork(Metrics(), lambda: clock() / NS_PER_S)
    unpaid.charge("a", BURST_S - 2 * REQUEST_S)
    unpaid.check("a")
    unpaid.charge("a", 0.05)
    with pytest.raises(RateLimited) as refused:
        unpaid.check("a")
    assert dict(refused.value.headers)[b"retry-after"] == b"1"
    unpaid.check("b")
    clock.advance((0.06 + REQUEST_S) / PER_S)
    unpaid.check("a")
    unpaid.charge("a", BURST_S / 2)
    clock.advance(10 * BURST_S / PER_S)  # no more than the whole budget comes back
    unpaid.charge("a", BURST_S)
    with pytest.raises(RateLimited):
        unpaid.check("a")


async def test_all_keys_of_an_account_have_one_budget(funded: FundedStore) -> None:
    """Refused bodies count for the account, and then each of its keys gets 429; what is served does not count."""
    other = await add_key(funded.store, NewKey("key_b", ACCOUNT_ID, "", "", frozenset(), 1, None))
    async with running_api(funded, ScriptedUpstream(Piece("yes", "stop", Usage(3, 1)))) as api:

        async def status(body: bytes, key: str = funded.secret) -> int:
            client = Client()
            client.open([(b"authorization", b"Bearer " + key.encode())], body=body)
            await client.serve(api.gateway)
            return client.status

        clock = Clock()
        api.gateway.unpaid = UnpaidWork(funded.observer.metrics, lambda: clock() / NS_PER_S)
        api.gateway.unpaid.charge(ACCOUNT_ID, BURST_S - 2 * REQUEST_S)
        served = b'{"messages":[{"role":"user","content":"hi"}]}'
        assert [await status(served) for _ in range(3)] == [200] * 3
        assert await status(b"{}" + b" " * 8192) == 400
        assert [await status(served, key=other), await status(served)] == [429] * 2
        assert funded.observer.sample("cadenza_refused_total", reason="unpaid") == 2


class Charged(UnpaidWork):
    """Keeps the CPU time of the last charge."""

    last_s = 0.0

    def charge(self, account_id: str, cpu_s: float) -> None:
        self.last_s = cpu_s
        super().charge(account_id, cpu_s)


@pytest.fixture
def counting() -> tuple[str, int]:
    """The path of a prompt that is counted, and the status that follows."""
    return "/v1/chat/completions", 400


async def test_what_a_long_prompt_took_to_count_is_charged(funded: FundedStore, counting: tuple[str, int]) -> None:
    """Whether it was counted to be refused, or because somebody asked for the count."""
    text = "".join(random.Random(1).choices("0123456789-=(){} ", k=100_000))
    path, expected = counting
    async with running_api(funded, ScriptedUpstream()) as api:
        tokenizer = api.gateway.dispatcher.tokenizer
        tokenizer.load()
        charged = api.gateway.unpaid = Charged(funded.observer.metrics)
        client = Client()
        body = b'{"max_tokens":9,"messages":[{"role":"user","content":"%b"}]}' % text.encode()
        client.open([(b"authorization", b"Bearer " + funded.secret.encode())], path=path, body=body)
        await client.serve(api.gateway)
        assert client.status == expected
        began_s = time.thread_time()
        tokenizer.count(text)
        assert charged.last_s > (time.thread_time() - began_s) / 2
