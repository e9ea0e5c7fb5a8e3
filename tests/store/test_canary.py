"""Canaries on a real store: counts of several processes add up, and one of them steps up or rolls back."""

import io
import json
import time
from collections.abc import Iterator
from itertools import count

import msgspec
import pytest

from cadenza.core.classes import ClassState, ClassVersion, bucket_of
from cadenza.core.money import Price
from cadenza.core.prices import PriceSchedule
from cadenza.core.records import Outcome, Plan, Principal, Route, Usage
from cadenza.evaluation.canaries import Canaries, CanaryRules
from cadenza.evaluation.canary import StepRules, new_canary
from cadenza.observe import Observer, make_log
from cadenza.routing.catalogue import Catalogue, ServedClass
from cadenza.routing.prompt import Character
from cadenza.store.store import Store, Transaction
from cadenza.store.tables import audit_events, class_versions, epochs

CLASS = "forte"
OLD, NEW, FALLBACK = (
    Route("acme", "old", 1000, 100),
    Route("acme", "new", 1000, 100),
    Route("b", "b", 1000, 100, order=1),
)
STEPS = StepRules(requests=20, accounts=5, incumbents=20, least_ms=0)
RULES = CanaryRules(account_every_ms=0, account_requests=10**6, steps=STEPS)


async def begin(store: Store, share: int = 5) -> ClassState:
    """A class with two versions and a canary of the second."""
    old = ClassVersion(class_id=CLASS, routes=(OLD, FALLBACK), character="")

    def work(tx: Transaction) -> ClassState:
        class_versions.add_state(tx, class_versions.add(tx, old), 1)
        state = class_versions.get_state(tx, CLASS)
        assert state
        candidate = class_versions.add(tx, old.with_candidate(NEW))
        begun = msgspec.structs.replace(state, candidate=candidate, share=share, canary=new_canary())
        assert class_versions.change_state(tx, begun, time.time_ns() // 1_000_000)
        return begun

    return await store.transact(work)


class CountingProcess:
    """A process that serves what the store says, records outcomes and follows the canary."""

    def __init__(self, store: Store, rules: CanaryRules = RULES) -> None:
        self.state: ClassState | None = None
        self.log = io.StringIO()
        self.observer = Observer(make_log(self.log))
        self._store = store
        self._canaries = Canaries(store, self.observer, self.catalogue, rules)

    def catalogue(self) -> Catalogue:
        assert self.state
        state = self.state

        def served(version: ClassVersion) -> ServedClass:
            plan = Plan.of(CLASS, version.routes)
            return ServedClass(plan, Character(""), PriceSchedule(Price(1, 1)), version=version.number)

        candidate = served(state.candidate) if state.candidate else None
        return Catalogue(
            {CLASS: msgspec.structs.replace(served(state.version), candidate=candidate, share=state.share)}
        )

    async def poll(self) -> ClassState:
        """As at the end of an interval, and after every reload."""
        self.state = await read(self._store)
        await self._canaries.poll()
        self.state = await read(self._store)
        await self._canaries.poll()
        return self.state

    def serve(self, account_id: str, **fields: object) -> int:
        """Serve one request of an account, and return the version that did."""
        served = self.catalogue().find(CLASS, Principal("key", account_id, frozenset(), CLASS))
        route = served.plan.routes[0]
        ordinary = Outcome(
            request_id="req",
            endpoint="chat",
            status=200,
            duration_ms=0,
            ended_at=time.time_ns() // 1_000_000,
            account_id=account_id,
            completion_id="chatcmpl-x",
            class_id=CLASS,
            version=served.version,
            provider=route.provider,
            model=route.model,
            usage=Usage(10, 100),
            first_byte_ms=200,
            finish_reason="stop",
        )
        of_candidate = served.version == 2
        self.observer.record(msgspec.structs.replace(ordinary, **(fields if of_candidate else {})))
        assert served.version
        return served.version

    @property
    def lines(self) -> list[dict[str, object]]:
        return [line for line in map(json.loads, self.log.getvalue().splitlines()) if "canary" in line["event"]]


async def read(store: Store) -> ClassState:
    state = await class_versions.read_state(store, CLASS)
    assert state
    return state


def accounts(share: int, number: int = 2) -> Iterator[str]:
    """Accounts that are served by the candidate at this share."""
    return (name for name in map("acct_{}".format, count()) if bucket_of(name, CLASS, number) < share * 100)


async def test_a_good_candidate_steps_up_by_itself(store: Store) -> None:
    """5, 25, then all: each step has its audit event and epoch, and an account never goes back."""
    await begin(store)
    process = CountingProcess(store)
    epoch, versions = await epochs.current(store, epochs.CLASSES), dict[str, list[int]]()
    shares = [(await process.poll()).share]
    while shares[-1]:
        for name in [f"acct_{number}" for number in range(600)]:
            versions.setdefault(name, []).append(process.serve(name))
        shares.append((await process.poll()).share)
    state = await read(store)
    assert shares == [5, 25, 0]
    assert (state.version.number, state.previous, state.candidate, state.canary) == (2, 1, None, None)
    assert all(served == sorted(served) for served in versions.values())
    assert await epochs.current(store, epochs.CLASSES) == epoch + 2
    events = await audit_events.list_of_subject(store, CLASS, 10)
    assert [(event.event, event.actor) for event in events] == [("class.promote", "canary"), ("class.share", "canary")]
    assert "no alarm" in events[0].detail
    assert [line["event"] for line in process.lines] == ["a canary steps up"] * 2


@pytest.mark.parametrize(
    ("fault", "measure"),
    [
        ({"status": 502, "fault": "failed", "usage": None, "finish_reason": ""}, "errors"),
        ({"provider": "b", "model": "b"}, "errors"),
        ({"status": 400, "fault": "refused", "usage": None}, "errors"),
        ({"first_byte_ms": 900}, "first token"),
        ({"finish_reason": "length"}, "finish reasons"),
        ({"usage": Usage(10, 400)}, "longer answers"),
        ({"usage": Usage(10, 20)}, "shorter answers"),
    ],
)
async def test_a_worse_candidate_is_rolled_back(sqlite_store: Store, fault: dict[str, object], measure: str) -> None:
    """Failures, answers of a fallback, slow, cut, long and short answers: within 30 requests, with the reason."""
    await begin(sqlite_store, 25)
    process, served = CountingProcess(sqlite_store, msgspec.structs.replace(RULES, steps=StepRules())), 0
    await process.poll()
    names = map("acct_{}".format, count())
    while served < 30 and process.state and process.state.candidate:
        served += sum(process.serve(next(names), **fault) == 2 for _ in range(8))
        await process.poll()
    state = await read(sqlite_store)
    assert (state.version.number, state.candidate, state.canary) == (1, None, None)
    (event,) = await audit_events.list_of_subject(sqlite_store, CLASS, 10)
    assert event.event == "class.rollback"
    assert measure in event.detail
    assert [line["event"] for line in process.lines] == ["a canary was rolled back"]
    sample = process.observer.metrics.registry.get_sample_value
    assert sample("cadenza_canary_rollbacks_total", {"class_id": CLASS, "measure": measure}) == 1
    assert sample("cadenza_canary_share", {"class_id": CLASS}) == 0


@pytest.mark.parametrize(
    "harmless",
    [
        {"status": 499, "usage": Usage(1, 1), "finish_reason": ""},
        {"status": 429, "usage": None, "finish_reason": ""},
        {"status": 503, "usage": None, "finish_reason": ""},
        {"status": 500, "usage": None, "finish_reason": "", "provider": "", "model": ""},
        {"first_byte_ms": 250},
        {"usage": Usage(10, 120)},
        {"finish_reason": "tool_calls"},
    ],
)
async def test_what_is_not_the_candidates_fault(sqlite_store: Store, harmless: dict[str, object]) -> None:
    """Disconnects, our own refusals, a shutdown, a killed process and small differences raise no alarm."""
    await begin(sqlite_store, 25)
    process = CountingProcess(sqlite_store, msgspec.structs.replace(RULES, steps=StepRules()))
    await process.poll()
    for number in range(400):
        process.serve(f"acct_{number}", **harmless)
        if number % 40 == 0:
            await process.poll()
    assert (await process.poll()).share == 25


async def test_counts_of_two_processes_add_up(store: Store) -> None:
    """Each has half of the evidence; together they roll back, once, and keep the revision until then."""
    begun = await begin(store, 25)
    processes = [CountingProcess(store), CountingProcess(store)]
    for process in processes:
        await process.poll()
    names = iter(range(10_000))
    for process in processes:
        wanted, shared = 2, accounts(25)
        for _ in range(wanted):
            process.serve(next(shared), status=502, fault="failed", usage=None)
        for name in (f"acct_{next(names)}" for _ in range(60)):
            if bucket_of(name, CLASS, 2) >= 2500:
                process.serve(name)
        state = await process.poll()
        if process is processes[0]:
            assert (state.share, state.revision) == (25, begun.revision + 1)
    assert state.candidate is None
    assert len(await audit_events.list_of_subject(store, CLASS, 10)) == 1
    assert (await processes[0].poll()).candidate is None


async def test_one_account_counts_little(sqlite_store: Store) -> None:
    """A hundred failures of one account count once in ten seconds; invalid requests count once an hour."""
    await begin(sqlite_store, 25)
    process = CountingProcess(sqlite_store, CanaryRules())
    await process.poll()
    for name in ("acct_x", "acct_y", *(f"acct_{number}" for number in range(40))):
        for _ in range(100):
            process.serve(name)
    await process.poll()
    sample = process.observer.metrics.registry.get_sample_value
    counted = [
        sample("cadenza_canary_requests_total", {"class_id": CLASS, "side": side}) or 0
        for side in ("candidate", "incumbent")
    ]
    assert sum(counted) == 42


async def test_a_request_of_the_step_before_does_not_count(sqlite_store: Store) -> None:
    """Requests that began before the canary are left out on both sides."""
    await begin(sqlite_store, 25)
    process = CountingProcess(sqlite_store)
    await process.poll()
    for name in (next(accounts(25)), "acct_0", "acct_1"):
        process.serve(name, duration_ms=60_000)
    await process.poll()
    sample = process.observer.metrics.registry.get_sample_value
    labels = {"class_id": CLASS, "side": "candidate"}
    assert not sample("cadenza_canary_requests_total", labels)


async def test_an_operator_came_first(sqlite_store: Store) -> None:
    """Counts of a canary that an operator ended are dropped, and change nothing."""
    begun = await begin(sqlite_store, 25)
    process = CountingProcess(sqlite_store)
    await process.poll()
    for name, _ in zip(accounts(25), range(20), strict=False):
        process.serve(name, status=502, fault="failed", usage=None)
    ended = msgspec.structs.replace(begun, candidate=None, share=0, canary=None, revision=begun.revision + 1)
    assert await sqlite_store.transact(lambda tx: class_versions.change_state(tx, ended, 3))
    state = await process.poll()
    assert (state.version.number, state.canary, state.changed_at) == (1, None, 3)
    assert await audit_events.list_of_subject(sqlite_store, CLASS, 10) == []


async def test_counts_that_cannot_be_read_do_not_end_the_task(store: Store) -> None:
    """The log says once what to do. When the counts can be read again, the canary goes on."""
    await begin(store)
    process = CountingProcess(store)
    await process.poll()
    await store.transact(lambda tx: class_versions.set_canary(tx, CLASS, "[1]"))
    await process.poll()
    [line] = [json.loads(line) for line in process.log.getvalue().splitlines()]
    assert (line["event"], line["class_id"]) == ("a canary cannot be followed", CLASS)
    assert "cadenza class rollback forte" in line["reason"]
    await store.transact(lambda tx: class_versions.set_canary(tx, CLASS, new_canary()))
    for name in [f"acct_{number}" for number in range(600)]:
        process.serve(name)
    assert (await process.poll()).share == 25
