"""A real Prometheus watches real services: nothing fires while they work, and each outage has its own alerts.

Each service has a load, an upstream and a Prometheus of its own, whose rules run 60 times as fast. test_alert_rules.py
has every alert, on series that are written down.
"""

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import pytest

from tests.fault.test_stalled_store import write_lock
from tests.loopback import LoopbackUpstream, Status, Wait, Whole, usage_of
from tests.prometheus import FASTER, running_prometheus
from tests.raw_client import RawClient
from tests.service import Service, wait_until
from tests.service_config import RouteSpec, ServiceSpec
from tests.valkey import running_valkey

pytestmark = pytest.mark.release(reason="waits for alerts of a real Prometheus")

HEALTHY_SCRAPES = 10
FIRES_S = 90.0
PAUSE_S = 0.25  # of a client between two requests
BUSY_MACHINE = {"CadenzaDown", "CadenzaLoopLags"}  # may fire if the tests have too little CPU
COSTS = 'cost_input = "0.20"\ncost_output = "0.60"\n'
WORDS = ["Seven", " four", " five"]


class Watched:
    """A service under load, its upstream, and the Prometheus that watches it."""

    faster = FASTER

    def __init__(self, more_toml: str = "", limits: dict[str, float | str] | None = None, **chat: Any) -> None:
        self._more_toml = more_toml
        self._limits = limits or {}
        self._chat = chat
        self._stop = threading.Event()
        self._stack = contextlib.ExitStack()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self.upstream = stack.enter_context(LoopbackUpstream())
            self.other = stack.enter_context(LoopbackUpstream())
            providers = {"acme": self.upstream.base_url, "other": self.other.base_url}
            routes = [
                RouteSpec("acme", more_toml=COSTS),
                RouteSpec("other", "backup", order=1, continues=True, more_toml=COSTS),
            ]
            spec = ServiceSpec(providers, {"forte": routes}, self._more_toml, self._limits)
            self.service = stack.enter_context(Service(spec))
            stack.callback(self._end_load)
            self.prometheus = stack.enter_context(running_prometheus([self.service.port], self.faster))
            self.add_clients(1)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stack.close()

    def add_clients(self, count: int) -> None:
        for _ in range(count):
            thread = threading.Thread(target=self._send, daemon=True)
            thread.start()
            self._threads.append(thread)

    def is_healthy(self) -> None:
        """Wait until it was scraped for a while; nothing fires."""
        was_scraped = f"count_over_time(up[1m]) > {HEALTHY_SCRAPES}"
        wait_until(lambda: bool(self.prometheus.query(was_scraped)), "scrapes")
        assert self.prometheus.firing() - BUSY_MACHINE == set()

    def fires(self, *expected: str) -> None:
        """Wait until these alerts fire, and no others."""
        seen: set[str] = set()

        def fire() -> bool:
            firing = self.prometheus.firing()
            seen.update(firing - BUSY_MACHINE)
            return firing >= set(expected)

        wait_until(fire, f"{expected} firing, seen were {seen}", FIRES_S)
        assert seen - BUSY_MACHINE == set(expected) - BUSY_MACHINE

    def _send(self) -> None:
        api, number = RawClient(self.service.port, self.service.key), 0
        while not self._stop.wait(PAUSE_S):
            number += 1
            with contextlib.suppress(OSError, AssertionError):  # an outage
                api.chat(stream=bool(number % 2), **self._chat)

    def _end_load(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


class SlowlyWatched(Watched):
    """The rules are less fast: a service waits five seconds for a lock of its store before it tries again."""

    faster = 12


def provider_down(watched: Watched) -> None:
    for upstream in (watched.upstream, watched.other):
        upstream.always(Status(500))
    watched.fires("CadenzaChatsFail", "CadenzaRouteRests")


def store_locked(watched: Watched) -> None:
    with write_lock(watched.service.store):
        watched.fires("CadenzaStoreFails")


def no_slots(watched: Watched) -> None:
    watched.upstream.always(Whole(WORDS, usage_of(9, 3), Wait(3.0)))
    watched.add_clients(12)
    watched.fires("CadenzaSaturated")


def process_killed(watched: Watched) -> None:
    watched.service.process.kill()
    watched.fires("CadenzaDown")


def test_every_outage_is_seen() -> None:
    """A healthy service fires nothing, and each outage fires its own alerts and no others."""
    with contextlib.ExitStack() as stack:
        valkey = stack.enter_context(running_valkey())

        def valkey_down(watched: Watched) -> None:
            valkey.kill()
            watched.fires("CadenzaLimitsNotShared")

        outages: dict[Callable[[Watched], None], Watched] = {
            provider_down: Watched(),
            store_locked: SlowlyWatched(),
            no_slots: Watched(limits={"concurrency": 2}),
            valkey_down: Watched(f'[shared_state]\nurl = "{valkey.url}"\n'),
            process_killed: Watched(),
        }
        with ThreadPoolExecutor(len(outages)) as threads:
            for watched in outages.values():
                stack.enter_context(watched)

            def run(outage: Callable[[Watched], None]) -> None:
                outages[outage].is_healthy()
                outage(outages[outage])

            running = [threads.submit(run, outage) for outage in outages]
            failed = {outage.__name__: one.exception() for outage, one in zip(outages, running, strict=True)}
        assert {name: error for name, error in failed.items() if error} == {}
