"""The config is read again while requests run: the next one sees it, none is dropped, and mistakes change nothing."""

import json
import os
import re
import signal
import sqlite3
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from cadenza.cli import app
from tests.cli.program import serving
from tests.contract.purse import wait_until
from tests.contract.till import Till
from tests.contract.wire import Reply, Wire, read_all, read_until
from tests.loopback import USAGE, Good, LoopbackUpstream, Pause, Sse, chunk, said
from tests.schemas import check_stream
from tests.service import CHARACTER, RouteSpec, Service, ServiceSpec, ordinary_spec

SLOTS = 4
ROLE = chunk({"role": "assistant", "content": ""})
FINISH = chunk(finish="stop")
COUNTS = chunk(choices=[], usage=USAGE)
NOT_READ = "the config was not read again: it has mistakes"
FORTE_NANO = 11 * 1070 + 7 * 3450  # what USAGE costs


class Reloads(Till):
    """One service and what its config file says."""

    @property
    def _config(self) -> Path:
        return self.service.folder / "cadenza.toml"

    def write(self, toml: str) -> None:
        self._config.write_text(toml)

    def announce(self) -> None:
        """As an operator does it: by the command."""
        done = CliRunner().invoke(app, ["classes", "reload", "--config", str(self._config)])
        assert done.exit_code == 0, done.output

    def change(self, spec: ServiceSpec | None = None, **fields: Any) -> None:
        self.write(msgspec.structs.replace(spec or self.service.spec, **fields).toml())
        self.announce()


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[LoopbackUpstream]:
    with LoopbackUpstream() as running:
        yield running


@pytest.fixture(scope="module")
def running(shared_upstream: LoopbackUpstream) -> Iterator[Service]:
    """forte alone, on one upstream."""
    spec = ServiceSpec(
        {"acme": shared_upstream.base_url}, {"forte": [RouteSpec("acme", "one")]}, "", {"concurrency": SLOTS}
    )
    with Service(spec) as service:
        yield service


@pytest.fixture
def reloads(running: Service, upstream: LoopbackUpstream, elsewhere: LoopbackUpstream) -> Iterator[Reloads]:
    elsewhere.reset()
    made = Reloads(running)
    made.write(running.spec.toml())
    running.reload()
    yield made
    made.prove()


def test_a_new_class_is_there_at_once(reloads: Reloads, upstream: LoopbackUpstream) -> None:
    """A class that was not configured is listed and served by the very next requests, and one taken out is neither."""
    reloads.wire.chat(model="mezzo").error(400)
    reloads.change(routes={"mezzo": [RouteSpec("acme", "small")]})
    assert [model["id"] for model in reloads.wire.get("/v1/models").json["data"]] == ["auto", "mezzo"]
    assert reloads.wire.chat(model="mezzo").json["model"] == "mezzo"
    assert upstream.requests[-1].json["model"] == "small"
    reloads.wire.chat(model="forte").error(400)


def test_a_new_route_is_asked_at_once(reloads: Reloads, upstream: LoopbackUpstream) -> None:
    """The very next request goes where the file now says."""
    reloads.change(routes={"forte": [RouteSpec("acme", "one", order=1), RouteSpec("acme", "better")]})
    assert reloads.wire.chat().status == 200
    assert [request.json["model"] for request in upstream.requests] == ["better"]


def test_a_new_character_speaks_at_once(reloads: Reloads, upstream: LoopbackUpstream) -> None:
    """The very next request has the new character layer."""
    reloads.write(reloads.service.spec.toml().replace(CHARACTER, "You are someone else."))
    reloads.announce()
    reloads.wire.chat()
    assert upstream.requests[-1].json["messages"][0] == {"role": "system", "content": "You are someone else."}


def test_a_new_price_counts_at_once_and_for_none_before(reloads: Reloads, upstream: LoopbackUpstream) -> None:
    """The very next request pays the new price; a stream that was under way pays the one that it began with."""
    pause = Pause()
    upstream.script(Sse([ROLE, said("half"), pause, said(" done"), FINISH, COUNTS]))
    with reloads.wire.open_chat(stream=True) as connection:
        read_until(connection, b'"half"')
        reloads.change(more_toml='[prices.forte]\ninput = "1"\noutput = "2"\n')
        assert reloads.wire.chat().status == 200
        pause.release()
        assert b"[DONE]" in read_all(connection)
    assert reloads.charges_nano == [11 * 1000 + 7 * 2000, FORTE_NANO]


def test_a_new_rate_counts_at_once(reloads: Reloads) -> None:
    """The very next reply speaks of the new rate."""
    assert reloads.wire.get("/v1/models").headers["x-ratelimit-limit-requests"] == "10000"
    reloads.change(limits={"concurrency": SLOTS, "burst": 77})
    assert reloads.wire.get("/v1/models").headers["x-ratelimit-limit-requests"] == "77"


@pytest.mark.parametrize("slots", [1, SLOTS * 2])
def test_a_new_concurrency_counts_at_once(reloads: Reloads, upstream: LoopbackUpstream, slots: int) -> None:
    """As many as may now be in flight are served at once, be it fewer or more than before; one more is told to wait."""
    reloads.change(limits={"concurrency": slots})
    reloads.wire.get("/v1/models")
    pause = Pause()
    upstream.always(Sse([pause, ROLE, said("all"), FINISH]))
    with ThreadPoolExecutor(slots) as crowd:
        try:
            served = [crowd.submit(reloads.wire.chat, stream=True) for _ in range(slots)]
            upstream.wait_for_request(slots)
            reloads.wire.chat().error(429, "rate_limit_error")
        finally:
            pause.release()
        assert {check_stream(one.result().body).text for one in served} == {"all"}


def test_a_new_address_is_used_at_once(
    reloads: Reloads, upstream: LoopbackUpstream, elsewhere: LoopbackUpstream
) -> None:
    """The very next request goes to the provider's new address, and the old one is not kept open."""
    of_others = set(upstream.connections)
    assert reloads.wire.chat().status == 200
    elsewhere.always(Good("from elsewhere"))
    reloads.change(providers={"acme": elsewhere.base_url})
    assert reloads.wire.chat().json["choices"][0]["message"]["content"] == "from elsewhere"
    assert len(upstream.requests) == 1
    wait_until(lambda: set(upstream.connections) <= of_others, "the old provider's connections being closed")


def test_a_provider_that_stays_keeps_its_connections(reloads: Reloads, elsewhere: LoopbackUpstream) -> None:
    """What did not change goes on as it is, whatever else the file says now."""
    both = ServiceSpec({"acme": elsewhere.base_url}, {"forte": [RouteSpec("acme", "one")]}, "", {"concurrency": SLOTS})
    reloads.change(both)
    assert reloads.wire.chat().status == 200
    kept = set(elsewhere.connections)
    for number in range(3):
        reloads.change(both, routes={"forte": [RouteSpec("acme", f"model-{number}")]})
        assert reloads.wire.chat().status == 200
    assert set(elsewhere.connections) == kept


def test_a_stream_on_a_provider_that_goes_away_ends_whole(
    reloads: Reloads, upstream: LoopbackUpstream, elsewhere: LoopbackUpstream
) -> None:
    """A stream stays where it is while the next request goes elsewhere; it ends whole and is charged."""
    pause = Pause()
    upstream.script(Sse([ROLE, said("half"), pause, said(" done"), FINISH, COUNTS]))
    with reloads.wire.open_chat(stream=True) as connection:
        begun = read_until(connection, b'"half"')
        reloads.change(providers={"other": elsewhere.base_url}, routes={"forte": [RouteSpec("other", "two")]})
        assert reloads.wire.chat().status == 200
        assert len(elsewhere.requests) == 1
        pause.release()
        assert b"[DONE]" in begun + read_all(connection)
    assert reloads.charges_nano == [FORTE_NANO, FORTE_NANO]


def test_a_request_that_waits_for_the_store_is_not_lost(reloads: Reloads, elsewhere: LoopbackUpstream) -> None:
    """A request that was planned before its provider went away is served all the same."""
    store = reloads.service.folder / "data" / "cadenza.db"
    with closing(sqlite3.connect(store, isolation_level=None)) as lock, ThreadPoolExecutor(1) as other:
        lock.execute("BEGIN IMMEDIATE")
        waiting = other.submit(reloads.wire.chat)
        wait_until(lambda: slots_taken(reloads.wire) == 1, "the request being planned")
        spec = ServiceSpec({"other": elsewhere.base_url}, {"forte": [RouteSpec("other", "two")]})
        reloads.write(spec.toml())
        reloads.service.reload()
        lock.execute("ROLLBACK")
        assert waiting.result().status == 200


def slots_taken(wire: Wire) -> int:
    found = re.search(rb"^cadenza_slots_taken (\d+)", wire.get("/metrics").body, re.MULTILINE)
    assert found
    return int(found[1])


def test_the_command_refuses_mistakes(reloads: Reloads) -> None:
    """A file with mistakes is refused with all of them and 1, and the server has heard of nothing."""
    reloads.write(reloads.service.spec.toml().replace("weight = 1", "weigth = 1").replace("burst = 10000", "burst = 0"))
    before = reloads.service.output
    done = reloads.service.cli("classes", "reload", check=False)
    assert done.returncode == 1
    assert "weigth" in done.stderr
    assert "burst" in done.stderr
    assert reloads.wire.chat().status == 200
    assert "read again" not in reloads.service.output.removeprefix(before)


@pytest.mark.parametrize("toml", ["", "no = toml = at all", "[limits]\nburst = 0\n"], ids=["gone", "no toml", "wrong"])
def test_a_signal_with_a_broken_file_changes_nothing(reloads: Reloads, toml: str) -> None:
    """Mistakes are in the log, the service goes on as it was, and a mended file is read by the next signal."""
    before = reloads.service.output.count(NOT_READ)
    if toml:
        reloads.write(toml)
    else:
        (reloads.service.folder / "cadenza.toml").unlink()
    os.kill(reloads.service.pid, signal.SIGHUP)
    wait_until(lambda: reloads.service.output.count(NOT_READ) > before, "the mistakes being logged")
    line = next(line for line in reloads.service.output.splitlines()[::-1] if NOT_READ in line)
    assert json.loads(line)["problems"]
    reply = reloads.wire.chat()
    assert (reply.status, reply.headers["x-ratelimit-limit-requests"]) == (200, "10000")
    reloads.write(reloads.service.spec.toml())
    reloads.service.reload()
    assert reloads.wire.chat().status == 200


def test_a_signal_while_it_starts_does_not_end_it(tmp_path: Path, upstream: LoopbackUpstream) -> None:
    """A SIGHUP that comes before the service is ready is no reason to end: it becomes ready all the same."""
    (tmp_path / "cadenza.toml").write_text(ordinary_spec(upstream.base_url).toml())
    with serving(tmp_path) as server:
        os.kill(server.pid, signal.SIGHUP)
        assert Wire(server.port, None).get("/readyz").status == 200


def test_reloading_twice(reloads: Reloads, upstream: LoopbackUpstream) -> None:
    """Of two announcements the last file counts; a third without a change changes nothing."""
    for model in ("two", "three"):
        reloads.change(routes={"forte": [RouteSpec("acme", model)]})
    reloads.announce()
    for _ in range(2):
        assert reloads.wire.chat().status == 200
    assert [request.json["model"] for request in upstream.requests] == ["three", "three"]


def wait_for_another(asked: LoopbackUpstream, replies: list[Future[Reply]]) -> None:
    """Returns once a request has gone where it now goes, or all have ended."""
    before = len(asked.requests)
    wait_until(lambda: len(asked.requests) > before or all(map(Future.done, replies)), "one more request")


def test_requests_while_it_reloads_all_succeed(
    reloads: Reloads, upstream: LoopbackUpstream, elsewhere: LoopbackUpstream
) -> None:
    """Two hundred requests, streamed and not, while routes and addresses change twenty times: every one is served."""
    specs = [
        ServiceSpec(
            {"acme": base_url}, {"forte": [RouteSpec("acme", "one", weight=weight)]}, "", {"concurrency": SLOTS}
        )
        for weight, base_url in enumerate((upstream.base_url, elsewhere.base_url), start=1)
    ]
    with ThreadPoolExecutor(SLOTS) as crowd:
        replies = [crowd.submit(reloads.wire.chat, stream=bool(number % 2)) for number in range(200)]
        for number in range(20):
            reloads.write(specs[number % 2].toml())
            reloads.service.reload()
            wait_for_another((upstream, elsewhere)[number % 2], replies)
        statuses = {reply.result().status for reply in replies}
        whole = [b"[DONE]" in reply.result().body for reply in replies[1::2]]
    assert statuses == {200}
    assert all(whole)
    assert len(upstream.requests) + len(elsewhere.requests) == 200
    assert min(len(upstream.requests), len(elsewhere.requests)) > 0
