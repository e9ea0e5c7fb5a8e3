"""A canary in a running service: a bad candidate is rolled back by itself, and only its share of requests notices."""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import msgspec
import pytest

from cadenza.control.keys import KeyOrder, create_key
from cadenza.control.money.credit import give_credit
from cadenza.core.classes import bucket_of
from cadenza.core.records import Route
from cadenza.evaluation.canary import new_canary
from cadenza.fleet.changes import make_change
from cadenza.store.store import Store, Transaction
from cadenza.store.tables import class_versions, epochs
from tests.loopback import LoopbackUpstream, Status
from tests.migrated import STORE_WAIT_S, run_aside, with_store
from tests.raw_client import RawClient
from tests.service import COPY_ACCOUNT, CREDIT_NANO, EMAIL, Deployment, ServiceProcess, now_ms, wait_until
from tests.service_config import RouteSpec, ServiceSpec

ACCOUNTS = 120
SHARE = 25
GROUP = 12
UNIQUE = "zephyr-quill-71934"  # in every request, and in the replies of a slow candidate
CANDIDATE = Route("other", "loopback-other", 1_000_000, 131_072)
WATCHED = f'cadenza_canary_share{{class_id="forte"}} {SHARE}.0'
COUNTED = re.compile(r'^cadenza_canary_requests_total\{class_id="forte",side="\w+"\} (\S+)$', re.MULTILINE)


class CanaryRig:
    """A deployment with many accounts, an upstream for the class and one for its candidate."""

    def __init__(self, stack: ExitStack) -> None:
        self.incumbent, self.candidate = (stack.enter_context(LoopbackUpstream()) for _ in range(2))
        urls = {"loopback": self.incumbent.base_url, "other": self.candidate.base_url}
        self.deployment = stack.enter_context(Deployment(ServiceSpec(urls, {"forte": [RouteSpec("loopback")]})))
        self.accounts = [f"acct_{number:024x}" for number in range(ACCOUNTS)]  # always on the same sides
        self._keys = self._create_accounts()
        self.failed = {True: 0, False: 0}  # requests, by whether their account is in the candidate's share
        self.served = {True: 0, False: 0}

    def start(self, fault_point: str = "") -> ServiceProcess:
        return self.deployment.start(fault_point)

    def begin_canary(self) -> None:
        def begin(tx: Transaction) -> None:
            state = class_versions.get_state(tx, "forte")
            assert state
            version = class_versions.add(tx, state.version.with_candidate(CANDIDATE))
            values = {"candidate": version, "share": SHARE, "canary": new_canary(), "is_adopted": True}
            assert class_versions.change_state(tx, msgspec.structs.replace(state, **values), now_ms())
            epochs.begin_next(tx, epochs.CLASSES)

        self._with_store(lambda store: make_change(store, begin))

    def is_in_share(self, account_id: str) -> bool:
        return bucket_of(account_id, "forte", 2) < SHARE * 100

    def ask(self, process: ServiceProcess, account_id: str) -> int:
        asked = [{"role": "user", "content": f"Say it: {UNIQUE}."}]
        reply = RawClient(process.port, self._keys[account_id]).chat(model="forte", messages=asked)
        is_in_share = self.is_in_share(account_id)
        self.served[is_in_share] += 1
        self.failed[is_in_share] += reply.status != 200
        return reply.status

    def wait_until_watched(self, process: ServiceProcess) -> None:
        """Wait until the process counts the requests of the canary, or the canary has ended."""
        wait_until(lambda: self.state()["candidate"] is None or WATCHED in process.get("/metrics")[1], "the watch")

    def ask_until_decided(self, process: ServiceProcess) -> None:
        """One request of each account, in small groups, until the canary has ended or all have asked."""
        counted = 0
        self.wait_until_watched(process)
        for start in range(0, ACCOUNTS, GROUP):
            if self.state()["candidate"] is None:
                return
            counted += GROUP
            for account_id in self.accounts[start : start + GROUP]:
                self.ask(process, account_id)
            wait_until(
                lambda least=counted: self.state()["candidate"] is None or counted_requests(process) >= least,  # type: ignore[misc]
                "the requests being counted",
            )

    def state(self) -> dict[str, Any]:
        with closing(sqlite3.connect(self.deployment.store, timeout=STORE_WAIT_S)) as store:
            store.row_factory = sqlite3.Row
            return dict(store.execute("SELECT * FROM class_states WHERE class_id = 'forte'").fetchone())

    def history(self) -> list[tuple[str, str]]:
        with closing(sqlite3.connect(self.deployment.store, timeout=STORE_WAIT_S)) as store:
            return store.execute("SELECT event, detail FROM audit_events WHERE actor = 'canary' ORDER BY id").fetchall()

    def _with_store(self, work: Any) -> Any:
        return run_aside(lambda: with_store(f"sqlite:///{self.deployment.store}", work))

    def _create_accounts(self) -> dict[str, str]:
        rows = [(one, f"{one}@example.org", None, "forte", EMAIL) for one in self.accounts]
        with closing(sqlite3.connect(self.deployment.store, timeout=STORE_WAIT_S)) as store, store:
            store.executemany(COPY_ACCOUNT, rows)

        async def create(store: Store) -> dict[str, str]:
            keys = dict[str, str]()
            for account_id in self.accounts:
                email = f"{account_id}@example.org"
                await give_credit(store, email, CREDIT_NANO, "for a test", now_ms())
                keys[account_id] = (await create_key(store, email, KeyOrder("test", ()), now_ms()))[0]
            return keys

        keys: dict[str, str] = self._with_store(create)
        return keys


def counted_requests(process: ServiceProcess) -> int:
    return sum(int(float(count)) for count in COUNTED.findall(process.get("/metrics")[1]))


@pytest.fixture
def rig() -> Iterator[CanaryRig]:
    with ExitStack() as stack:
        yield CanaryRig(stack)


@pytest.mark.slow(reason="sends requests until a canary is decided")
def test_a_flaky_candidate_is_rolled_back(rig: CanaryRig) -> None:
    """It fails always: it is gone after a dozen of its requests, and no request outside of its share has failed."""
    process = rig.start()
    rig.candidate.always(Status(500))
    rig.begin_canary()
    rig.ask_until_decided(process)
    state, ((event, detail),) = rig.state(), rig.history()
    assert (state["version"], state["candidate"], state["share"], state["canary"]) == (1, None, 0, None)
    assert (event, detail.partition(": ")[0]) == ("class.rollback", "the canary of version 2 ended, version 1 stays")
    assert "errors" in detail
    wait_until(lambda: "a canary was rolled back" in process.output, "the line of the log")  # it comes last
    assert 0 < rig.failed[True] <= 12
    assert rig.failed[False] == 0
    rig.failed[True] = 0
    assert {rig.ask(process, account_id) for account_id in rig.accounts[:GROUP]} == {200}
    assert 'cadenza_canary_rollbacks_total{class_id="forte",measure="errors"} 1.0' in process.get("/metrics")[1]


@pytest.mark.slow(reason="two processes, and a canary that is looked at once a second")
@pytest.mark.parametrize("point", ["canary-added", "canary-decided", "canary-changed"])
def test_a_killed_process_leaves_a_whole_version(rig: CanaryRig, point: str) -> None:
    """Killed before its counts are written, before the rollback or after it: the next process ends the canary."""
    process = rig.start(point)
    rig.candidate.always(Status(500))
    rig.begin_canary()
    rig.wait_until_watched(process)
    for account_id in rig.accounts:
        if process.process.poll() is None:
            try:
                rig.ask(process, account_id)
            except (OSError, IndexError, ValueError):
                break
    process.wait_until_killed()
    state = rig.state()
    assert (state["version"], state["candidate"]) in [(1, 2), (1, None)]
    assert (state["candidate"] is None) == (point == "canary-changed")
    survivor = rig.start()
    rig.ask_until_decided(survivor)
    assert (rig.state()["version"], rig.state()["candidate"]) == (1, None)
    assert len(rig.history()) == 1
    assert {rig.ask(survivor, account_id) for account_id in rig.accounts[:GROUP]} == {200}
