"""Switches a class to another version as an operator's promotion does: one change that every process sees."""

import os
import signal
from multiprocessing.connection import Connection

import msgspec

from cadenza.core.classes import ClassState, ClassVersion
from cadenza.core.records import Route
from cadenza.fleet.changes import make_change
from cadenza.store.address import open_store
from cadenza.store.store import Store, Transaction
from cadenza.store.tables import class_versions, epochs
from tests.service import now_ms

ROUTE = Route("loopback", "candidate", 1_000_000, 131_072)


async def switch(store: Store, class_id: str = "forte", route: Route = ROUTE) -> ClassVersion:
    """Adopt the class and serve this route instead of its main routes."""

    def work(tx: Transaction) -> ClassVersion:
        state = _locked(tx, class_id)
        wanted = state.version.with_candidate(route)
        version = class_versions.find(tx, wanted) or class_versions.add(tx, wanted)
        _write(tx, state, version)
        return version

    return await make_change(store, work)


async def serve_version(store: Store, number: int, class_id: str = "forte") -> None:
    """Serve a recorded version again."""

    def work(tx: Transaction) -> None:
        version = class_versions.get(tx, class_id, number)
        assert version
        _write(tx, _locked(tx, class_id), version)

    await make_change(store, work)


def _locked(tx: Transaction, class_id: str) -> ClassState:
    state = class_versions.get_state(tx, class_id)
    assert state
    return state


def _write(tx: Transaction, state: ClassState, version: ClassVersion) -> None:
    new = msgspec.structs.replace(state, version=version, is_adopted=True)
    assert class_versions.change_state(tx, new, now_ms())
    epochs.begin_next(tx, epochs.CLASSES)


async def die_in_switch(line: Connection, url: str, when: str) -> None:
    """In a process of its own: switch, and die by kill -9 before the commit or right after it."""
    store = open_store(url)
    if when == "after":
        line.send(str((await switch(store)).number))
        os.kill(os.getpid(), signal.SIGKILL)

    def work(tx: Transaction) -> None:
        state = _locked(tx, "forte")
        version = class_versions.add(tx, state.version.with_candidate(ROUTE))
        _write(tx, state, version)
        os.kill(os.getpid(), signal.SIGKILL)

    await make_change(store, work)
