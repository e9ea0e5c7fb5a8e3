"""The config is read again while requests run: the next request uses it, none is dropped, mistakes change nothing."""

import base64
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

from tests.account import Account, open_account, run_command
from tests.cli.program import serving
from tests.loopback import ROLE, STOP, Good, LoopbackUpstream, Pause, Sse, said, usage_chunk
from tests.migrated import STORE_WAIT_S
from tests.raw_client import RawClient, Reply, read_all, read_until
from tests.schemas import check_stream
from tests.scripted_searxng import running_searxng
from tests.service import RELOADED, Service, wait_until
from tests.service_config import CHARACTER, RouteSpec, ServiceSpec, ordinary_spec

SLOTS = 4
NOT_READ = "the config was not reloaded: it has mistakes"
FORTE_NANO = 11 * 1070 + 7 * 3450  # what USAGE costs


class Reloads:
    """One service, an account on it, and its config file."""

    def __init__(self, account: Account) -> None:
        self.account = account
        self.service = account.service
        self.api = account.api
        self._charges_before = len(account.charges)

    @property
    def charges_nano(self) -> list[int]:
        """Since the test began."""
        return [-charge["amount_nano"] for charge in self.account.charges[self._charges_before :]]

    def write(self, toml: str) -> None:
        self.service.config.write_text(toml)

    def announce(self) -> None:
        """Reload as an operator does, by the command."""
        run_command(self.service, "class", "reload")

    def change(self, spec: ServiceSpec | None = None, **fields: Any) -> None:
        self.write(msgspec.structs.replace(spec or self.service.spec, **fields).toml())
        self.announce()


@pytest.fixture(scope="module")
def running(shared_upstream: LoopbackUpstream) -> Iterator[Service]:
    """Only forte, on one upstream."""
    spec = ServiceSpec(
        {"acme": shared_upstream.base_url}, {"forte": [RouteSpec("acme", "one")]}, "", {"concurrency": SLOTS}
    )
    with Service(spec) as service:
        yield service


@pytest.fixture(scope="module")
def account(running: Service) -> Iterator[Account]:
    """One for all tests: a key may take every slot only if no other key was used lately."""
    with open_account(running) as opened:
        yield opened


@pytest.fixture
def reloads(running: Service, account: Account, upstream: LoopbackUpstream, backup: LoopbackUpstream) -> Reloads:
    backup.reset()
    running.config.write_text(running.spec.toml())
    logged = account.api.get("/v1/models").headers["x-request-id"]
    wait_until(lambda: logged in running.output, "the lines of earlier reloads, by which the next one is known")
    running.reload()
    return Reloads(account)


def test_the_next_request_has_every_change(reloads: Reloads, upstream: LoopbackUpstream) -> None:
    """A class and its routes, the character and the rate are those of the last reload; a removed class is gone."""
    reloads.api.chat(model="mezzo").error(400)
    assert reloads.api.get("/v1/models").headers["x-ratelimit-limit-requests"] == "10000"
    limits = {"concurrency": SLOTS, "burst": 77}
    for model in ("two", "three"):
        routes = {"mezzo": [RouteSpec("acme", "small", order=1), RouteSpec("acme", model)]}
        spec = msgspec.structs.replace(reloads.service.spec, routes=routes, limits=limits)
        reloads.write(spec.toml().replace(CHARACTER, "You are someone else."))
        reloads.announce()
    listed = reloads.api.get("/v1/models")
    assert [model["id"] for model in listed.json["data"]] == ["auto", "mezzo"]
    assert listed.headers["x-ratelimit-limit-requests"] == "77"
    assert reloads.api.chat(model="mezzo").json["model"] == "mezzo"
    sent = upstream.requests[-1].json
    assert sent["model"] == "three"
    assert sent["messages"][0] == {"role": "system", "content": "You are someone else."}
    reloads.api.chat(model="forte").error(400)


def test_new_price_applies_to_new_requests(reloads: Reloads, upstream: LoopbackUpstream) -> None:
    """The next request pays the new price; a running stream pays the price it began with."""
    pause = Pause()
    upstream.script(Sse([ROLE, said("half"), pause, said(" done"), STOP, usage_chunk()]))
    with reloads.api.open_chat(stream=True) as connection:
        read_until(connection, b'"half"')
        reloads.change(more_toml='[prices.forte]\ninput = "1"\noutput = "2"\n')
        assert reloads.api.chat().status == 200
        pause.release()
        assert b"[DONE]" in read_all(connection)
    assert reloads.charges_nano == [11 * 1000 + 7 * 2000, FORTE_NANO]


@pytest.mark.parametrize("slots", [1, SLOTS * 2])
def test_new_concurrency_applies_at_once(reloads: Reloads, upstream: LoopbackUpstream, slots: int) -> None:
    """As many requests as now fit are served at once, fewer or more than before; one more is refused."""
    reloads.change(limits={"concurrency": slots})
    reloads.api.get("/v1/models")
    pause = Pause()
    upstream.always(Sse([pause, ROLE, said("all"), STOP]))
    with ThreadPoolExecutor(slots) as threads:
        try:
            served = [threads.submit(reloads.api.chat, stream=True) for _ in range(slots)]
            upstream.wait_for_request(slots)
            reloads.api.chat().error(429, "rate_limit_error")
        finally:
            pause.release()
        assert {check_stream(one.result().body).text for one in served} == {"all"}


def test_new_address_is_used_at_once(reloads: Reloads, upstream: LoopbackUpstream, backup: LoopbackUpstream) -> None:
    """The next request goes to the provider's new address, and connections to the old one are closed."""
    of_others = set(upstream.connections)
    assert reloads.api.chat().status == 200
    backup.always(Good("from elsewhere"))
    reloads.change(providers={"acme": backup.base_url})
    assert reloads.api.chat().json["choices"][0]["message"]["content"] == "from elsewhere"
    assert len(upstream.requests) == 1
    wait_until(lambda: set(upstream.connections) <= of_others, "the old provider's connections being closed")


def test_unchanged_provider_keeps_its_connections(reloads: Reloads, backup: LoopbackUpstream) -> None:
    """A provider that did not change keeps its connections, whatever else changed."""
    both = ServiceSpec({"acme": backup.base_url}, {"forte": [RouteSpec("acme", "one")]}, "", {"concurrency": SLOTS})
    reloads.change(both)
    assert reloads.api.chat().status == 200
    kept = set(backup.connections)
    for number in range(3):
        reloads.change(both, routes={"forte": [RouteSpec("acme", f"model-{number}")]})
        assert reloads.api.chat().status == 200
    assert set(backup.connections) == kept


def test_stream_on_a_removed_provider_ends_whole(
    reloads: Reloads, upstream: LoopbackUpstream, backup: LoopbackUpstream
) -> None:
    """A running stream stays on its provider while the next request goes elsewhere; it ends whole and is charged."""
    pause = Pause()
    upstream.script(Sse([ROLE, said("half"), pause, said(" done"), STOP, usage_chunk()]))
    with reloads.api.open_chat(stream=True) as connection:
        begun = read_until(connection, b'"half"')
        reloads.change(providers={"other": backup.base_url}, routes={"forte": [RouteSpec("other", "two")]})
        assert reloads.api.chat().status == 200
        assert len(backup.requests) == 1
        pause.release()
        assert b"[DONE]" in begun + read_all(connection)
    assert reloads.charges_nano == [FORTE_NANO, FORTE_NANO]


def test_request_that_waits_for_the_store_is_served(reloads: Reloads, backup: LoopbackUpstream) -> None:
    """A request that was planned before its provider was removed is still served."""
    store = reloads.service.folder / "data" / "cadenza.db"
    with closing(sqlite3.connect(store, STORE_WAIT_S, isolation_level=None)) as lock, ThreadPoolExecutor(1) as other:
        lock.execute("BEGIN IMMEDIATE")
        waiting = other.submit(reloads.api.chat)
        wait_until(lambda: slots_taken(reloads.api) == 1, "the request being planned")
        spec = ServiceSpec({"other": backup.base_url}, {"forte": [RouteSpec("other", "two")]})
        reloads.write(spec.toml())
        times = reloads.service.output.count(RELOADED)
        reloads.service.process.send_signal(signal.SIGHUP)
        lock.execute("ROLLBACK")
        wait_until(lambda: reloads.service.output.count(RELOADED) > times, "the config being read again")
        assert waiting.result().status == 200


def test_attachments_are_turned_off_at_once(reloads: Reloads) -> None:
    """The next request with a file is refused, until they are on."""
    data = f"data:text/plain;base64,{base64.b64encode(b'The pump is green.').decode()}"
    attached = [{"role": "user", "content": [{"type": "file", "file": {"filename": "a.txt", "file_data": data}}]}]
    reloads.change(more_toml="[grounding]\nattachments = false\n")
    assert "Attachments are turned off here." in reloads.api.chat(messages=attached).error(400)
    reloads.change()
    assert reloads.api.chat(messages=attached).headers["x-cadenza-grounding"] == "attachments=1"


def test_new_search_engine_is_asked_at_once(reloads: Reloads) -> None:
    """The next question goes to the new engine. A search that runs is answered by the old one, and not dropped."""
    question = [{"role": "user", "content": "Search the web: who won the race yesterday?"}]
    found = {"results": [{"url": "http://127.0.0.1:9/", "title": "The race", "content": "Per Dahl won."}]}
    answer = (200, "application/json", json.dumps(found).encode())
    with running_searxng() as old, running_searxng() as new, ThreadPoolExecutor(1) as other:
        new.answer = answer
        reloads.change(more_toml=f"{old.toml}timeout_s = 60\n")
        waiting = other.submit(reloads.api.chat, messages=question)
        wait_until(lambda: bool(old.queries), "the old engine being asked")
        reloads.change(more_toml=f"{new.toml}timeout_s = 60\n")
        assert reloads.api.chat(messages=question).headers["x-cadenza-grounding"] == "search=1"
        assert (len(old.queries), len(new.queries)) == (1, 1)
        old.answer = answer
        old.ended.set()
        assert waiting.result().headers["x-cadenza-grounding"] == "search=1"


def test_sections_that_need_a_restart_are_named(reloads: Reloads) -> None:
    """They stay as they are; each reload warns of them until the file has them as the running service does."""
    event = "the config has changes that need a restart"
    before = reloads.service.output.count(event)
    changed = '[server]\ndrain_s = 1\nworkers = 4\n[platform]\nsign_up = "open"\n'
    for _ in range(2):
        reloads.write(msgspec.structs.replace(reloads.service.spec, more_toml=changed).toml())
        reloads.service.reload()
    lines = [json.loads(line) for line in reloads.service.output.splitlines() if event in line]
    assert [(line["level"], line["sections"]) for line in lines[before:]] == [("warning", ["server", "platform"])] * 2
    reloads.write(reloads.service.spec.toml())
    reloads.service.reload()
    assert reloads.service.output.count(event) == before + 2


def slots_taken(api: RawClient) -> int:
    found = re.search(rb"^cadenza_slots_taken (\d+)", api.get("/metrics").body, re.MULTILINE)
    assert found
    return int(found[1])


def test_command_refuses_mistakes(reloads: Reloads) -> None:
    """A file with mistakes is refused with all of them and exit code 1, and the server is not signalled."""
    reloads.write(reloads.service.spec.toml().replace("weight = 1", "weigth = 1").replace("burst = 10000", "burst = 0"))
    before = reloads.service.output
    done = reloads.service.cli("class", "reload")
    assert done.returncode == 1
    assert "weigth" in done.stderr
    assert "burst" in done.stderr
    assert reloads.api.chat().status == 200
    assert "read again" not in reloads.service.output.removeprefix(before)


@pytest.mark.parametrize("toml", ["", "no = toml = at all", "[limits]\nburst = 0\n"], ids=["gone", "no toml", "wrong"])
def test_signal_with_a_broken_file_changes_nothing(reloads: Reloads, toml: str) -> None:
    """Mistakes are logged, the service continues unchanged, and the next signal reads a corrected file."""
    before = reloads.service.output.count(NOT_READ)
    if toml:
        reloads.write(toml)
    else:
        (reloads.service.folder / "cadenza.toml").unlink()
    os.kill(reloads.service.pid, signal.SIGHUP)
    wait_until(lambda: reloads.service.output.count(NOT_READ) > before, "the mistakes being logged")
    line = next(line for line in reloads.service.output.splitlines()[::-1] if NOT_READ in line)
    assert json.loads(line)["problems"]
    reply = reloads.api.chat()
    assert (reply.status, reply.headers["x-ratelimit-limit-requests"]) == (200, "10000")
    reloads.write(reloads.service.spec.toml())
    reloads.service.reload()
    assert reloads.api.chat().status == 200


def test_signal_during_the_start_does_not_end_it(tmp_path: Path, upstream: LoopbackUpstream) -> None:
    """A SIGHUP before the service is ready does not end it: it becomes ready."""
    (tmp_path / "cadenza.toml").write_text(ordinary_spec(upstream.base_url).toml())
    with serving(tmp_path) as server:
        os.kill(server.pid, signal.SIGHUP)
        assert RawClient(server.port, None).get("/readyz").status == 200


def wait_for_another(asked: LoopbackUpstream, replies: list[Future[Reply]]) -> None:
    """Wait until one more request reached this upstream, or all have ended."""
    before = len(asked.requests)
    wait_until(lambda: len(asked.requests) > before or all(map(Future.done, replies)), "one more request")


def test_requests_during_reloads_all_succeed(
    reloads: Reloads, upstream: LoopbackUpstream, backup: LoopbackUpstream
) -> None:
    """While routes and addresses change twenty times, every one of two hundred requests is served."""
    specs = [
        ServiceSpec(
            {"acme": base_url}, {"forte": [RouteSpec("acme", "one", weight=weight)]}, "", {"concurrency": SLOTS}
        )
        for weight, base_url in enumerate((upstream.base_url, backup.base_url), start=1)
    ]
    with ThreadPoolExecutor(SLOTS) as threads:
        replies = [threads.submit(reloads.api.chat, stream=bool(number % 2)) for number in range(200)]
        for number in range(20):
            reloads.write(specs[number % 2].toml())
            reloads.service.reload()
            wait_for_another((upstream, backup)[number % 2], replies)
        statuses = {reply.result().status for reply in replies}
        whole = [b"[DONE]" in reply.result().body for reply in replies[1::2]]
    assert statuses == {200}
    assert all(whole)
    assert len(upstream.requests) + len(backup.requests) == 200
    assert min(len(upstream.requests), len(backup.requests)) > 0
