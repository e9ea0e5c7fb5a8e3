"""Reloading: a request keeps the snapshot that it began with, and a new epoch is loaded once."""

import asyncio

from cadenza.core.rates import Limits, Rate
from cadenza.core.records import Route
from cadenza.gateway.gateway import Reloader
from cadenza.routing.catalogue import Snapshot
from cadenza.store.store import StoreUnavailable
from cadenza.store.tables import epochs
from cadenza.upstreams.base import Piece
from tests.unit.gateway.client import WAIT_S, Client, let_tasks_run
from tests.unit.gateway.funded_store import FundedStore
from tests.unit.gateway.gateways import LIMITS, PROVIDER, running_api, snapshot_of
from tests.unit.gateway.scripted_upstream import ScriptedUpstream

FINISH = Piece(finish_reason="stop")


class Change:
    """A reload that replaces one upstream, provider and route by another."""

    def __init__(self, opening: asyncio.Event | None = None) -> None:
        self.old = ScriptedUpstream(Piece("from the old one"), FINISH, opening=opening)
        self.new = ScriptedUpstream(Piece("from the new one"), FINISH)

    async def load(self) -> Snapshot:
        return snapshot_of({"other": self.new}, route=Route("other", "other-large", 2_000, 1_000))


async def test_a_request_keeps_its_snapshot(funded: FundedStore) -> None:
    """A request whose upstream is being asked during a reload is served by the old one, the next by the new one."""
    may_answer = asyncio.Event()
    change = Change(may_answer)
    first, second = Client(), Client()
    async with running_api(funded, change.old, change.load) as api:
        api.chat(first)
        serving = asyncio.create_task(first.serve(api.gateway))
        await change.old.is_asked.wait()
        await api.gateway.reloader.reload()
        api.chat(second)
        await second.serve(api.gateway)
        may_answer.set()
        await serving
        await api.gateway.ledger.drained()
    assert b"from the old one" in first.bodies[0]
    assert b"from the new one" in second.bodies[0]
    assert [outcome.provider for outcome in api.observer.outcomes] == ["other", PROVIDER]
    assert (len(change.old.asks), len(change.new.asks)) == (1, 1)


async def test_a_reload_changes_the_limits(funded: FundedStore) -> None:
    """The next request counts against the new rate, and the slots have the new limit."""

    async def load() -> Snapshot:
        return snapshot_of({}, Limits(Rate(1.0, 7), 1))

    client = Client()
    async with running_api(funded, load_snapshot=load) as api:
        await api.gateway.reloader.reload()
        api.get(client, "/v1/models")
        await client.serve(api.gateway)
        assert client.headers[b"x-ratelimit-limit-requests"] == b"7"
        assert [await api.gateway.slots.enter(key) for key in ("key_a", "key_b")] == [True, False]


async def test_a_new_epoch_in_the_store_is_loaded_before_the_request_is_served(funded: FundedStore) -> None:
    """The first request that sees it is served by the new snapshot already, and later ones load nothing."""
    loads = 0

    async def load() -> Snapshot:
        nonlocal loads
        loads += 1
        return snapshot_of({}, Limits(Rate(1.0, 7), 1))

    async with running_api(funded, load_snapshot=load) as api:
        await funded.store.transact(lambda tx: epochs.begin_next(tx, epochs.CLASSES))
        for _ in range(2):
            client = Client()
            api.get(client, "/v1/models")
            await client.serve(api.gateway)
            assert client.headers[b"x-ratelimit-limit-requests"] == b"7"
    assert loads == 1


class SlowLoader:
    """Loads one snapshot after another, each when it is told to."""

    def __init__(self) -> None:
        self.may_load = asyncio.Event()
        self.loads = 0
        self.used: list[Snapshot] = []
        self.is_store_away = False

    async def load(self) -> Snapshot:
        self.loads += 1
        await self.may_load.wait()
        if self.is_store_away:
            raise StoreUnavailable("It is away.")
        return snapshot_of({}, LIMITS)


async def test_requests_that_see_a_new_epoch_wait_for_one_load() -> None:
    """All of them go on once it is in use; an epoch that is loaded already needs no wait."""
    loader = SlowLoader()
    reloader = Reloader(loader.load, loader.used.append)
    reloader.epoch = 3
    async with asyncio.timeout(WAIT_S):
        await reloader.catch_up(3)
    waiting = [asyncio.create_task(reloader.catch_up(4)) for _ in range(3)]
    await let_tasks_run()
    assert not any(task.done() for task in waiting)
    async with asyncio.timeout(WAIT_S):
        await reloader.catch_up(2)
    loader.may_load.set()
    await asyncio.gather(*waiting)
    assert (loader.loads, len(loader.used)) == (1, 1)


async def test_a_store_that_is_away_fails_all_who_wait() -> None:
    """None of them is served by what was replaced, and none tries again itself; the next one does."""
    loader = SlowLoader()
    loader.is_store_away = True
    reloader = Reloader(loader.load, loader.used.append)
    waiting = [asyncio.create_task(reloader.catch_up(1)) for _ in range(3)]
    await let_tasks_run()
    loader.may_load.set()
    failed = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(one) for one in failed] == [StoreUnavailable] * 3
    assert (loader.loads, loader.used, reloader.epoch) == (1, [], 0)
    loader.is_store_away = False
    await reloader.catch_up(1)
    assert (loader.loads, len(loader.used), reloader.epoch) == (2, 1, 1)
