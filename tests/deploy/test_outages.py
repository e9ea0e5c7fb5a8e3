"""A real Prometheus watches real services: nothing fires while they work, and each outage has its own alerts.

Each service has a load, an upstream and a Prometheus of its own, whose rules run 60 times as fast. Another one scrapes
all services and answers the queries of every panel. What takes days or needs a payment provider is told by a process
that only has metrics. The outages that are not here are in test_alert_rules.py.
"""

import contextlib
import http.server
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import pytest
from deploy.dashboard import queries_of, read_rows

from cadenza.observe import Metrics
from tests.fault.test_stalled_store import no_space, write_lock
from tests.loopback import Cut, LoopbackUpstream, Status, Wait, Whole, usage_of
from tests.prometheus import FASTER, Prometheus, running_prometheus
from tests.raw_client import RawClient
from tests.scripted_searxng import running_searxng
from tests.service import Service, wait_until
from tests.service_config import RouteSpec, ServiceSpec
from tests.valkey import running_valkey

pytestmark = pytest.mark.release(reason="waits for alerts of a real Prometheus")

HEALTHY_SCRAPES = 10
FIRES_S = 90.0
ALL_S = 300.0  # for the panels: all that was seen
PAUSE_S = 0.25  # of a client between two requests
BUSY_MACHINE = {"CadenzaDown", "CadenzaLoopLags"}  # may fire if the tests have too little CPU
COSTS = 'cost_input = "0.20"\ncost_output = "0.60"\n'
QUESTION = [{"role": "user", "content": "Search the web: who won the race yesterday?"}]
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


def key_rejected(watched: Watched) -> None:
    watched.upstream.script(Cut(Whole(WORDS, usage_of(9, 3)), 600))
    watched.upstream.always(Status(401))
    watched.fires("CadenzaProviderRejectsKey")


def store_locked(watched: Watched) -> None:
    with write_lock(watched.service.store):
        watched.fires("CadenzaStoreFails")


def disk_full(watched: Watched) -> None:
    with no_space(watched.service.process):
        watched.fires("CadenzaStoreFails", "CadenzaLogDropped")


def no_slots(watched: Watched) -> None:
    watched.upstream.always(Whole(WORDS, usage_of(9, 3), Wait(3.0)))
    watched.add_clients(12)
    watched.fires("CadenzaSaturated")


def search_fails(watched: Watched) -> None:
    watched.fires("CadenzaSearchFails")


def impossible_counts(watched: Watched) -> None:
    watched.upstream.always(Whole(WORDS, {"prompt_tokens": -5, "completion_tokens": 7}))
    watched.fires("CadenzaCountsAreDoubtful")


def process_pauses(watched: Watched) -> None:
    process, has_fired = watched.service.process, threading.Event()

    def pause() -> None:
        while not has_fired.wait(0.1):
            process.send_signal(signal.SIGSTOP)
            has_fired.wait(0.7)
            process.send_signal(signal.SIGCONT)

    pausing = threading.Thread(target=pause)
    pausing.start()
    try:
        watched.fires("CadenzaLoopLags")
    finally:
        has_fired.set()
        pausing.join()


def process_killed(watched: Watched) -> None:
    watched.service.process.kill()
    watched.fires("CadenzaDown")


@contextlib.contextmanager
def told_metrics() -> Iterator[int]:
    """The port of a process that shows what a watch, a payment, a continued stream and a trace would count."""
    metrics = Metrics()
    metrics.watch_score.labels("forte").set(0.9)
    metrics.payment_events.labels("done").inc()
    metrics.continued.labels("other").inc()
    metrics.spans.add("exported")

    class Told(http.server.BaseHTTPRequestHandler):
        """One scrape."""

        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(metrics.render())

        def log_message(self, *_: object) -> None:
            """Not printed."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Told) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            serving.join()


def unanswered_queries(prometheus: Prometheus) -> list[str]:
    """The queries of panels that return no data."""
    panels = [panel for row in read_rows() for panel in row["panels"]]
    return [
        f"{panel['title']}: {query}"
        for panel in panels
        for query in queries_of(panel).values()
        if not prometheus.query_panel(query, ALL_S)
    ]


def test_every_outage_is_seen_and_every_panel_has_data() -> None:
    """A healthy service fires nothing, each outage fires its own alerts and no others, and all queries return data."""
    with contextlib.ExitStack() as stack:
        valkey = stack.enter_context(running_valkey())
        engine = stack.enter_context(running_searxng())

        def valkey_down(watched: Watched) -> None:
            valkey.kill()
            watched.fires("CadenzaLimitsNotShared")

        engine.answer = 500, "text/plain", b""
        outages: dict[Callable[[Watched], None], Watched] = {
            provider_down: Watched(),
            key_rejected: Watched(),
            store_locked: SlowlyWatched(),
            disk_full: Watched(),
            no_slots: Watched(limits={"concurrency": 2}),
            valkey_down: Watched(f'[shared_state]\nurl = "{valkey.url}"\n'),
            search_fails: Watched(engine.toml, messages=QUESTION),
            impossible_counts: Watched(),
            process_pauses: Watched(),
            process_killed: Watched(),
        }
        with ThreadPoolExecutor(len(outages)) as threads:
            for watched in outages.values():
                stack.enter_context(watched)
            ports = [watched.service.port for watched in outages.values()]
            everything = stack.enter_context(running_prometheus([*ports, stack.enter_context(told_metrics())]))

            def run(outage: Callable[[Watched], None]) -> None:
                watched = outages[outage]
                if outage is not search_fails:
                    watched.is_healthy()
                outage(watched)

            running = [threads.submit(run, outage) for outage in outages]
            failed = {outage.__name__: one.exception() for outage, one in zip(outages, running, strict=True)}
        assert {name: error for name, error in failed.items() if error} == {}
        assert unanswered_queries(everything) == []
