"""The model behind a class is replaced while requests run: each is served by one whole version, and says by which."""

import asyncio
import csv
import io
import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.account import Account, open_account, run_command
from tests.class_switch import ROUTE, serve_version, switch
from tests.fault.conftest import Deploy
from tests.fault.test_kill import CREDIT_NANO, begin
from tests.fault.test_reload import NOT_READ
from tests.loopback import ROLE, STOP, LoopbackUpstream, Pause, Sse, said, usage_chunk
from tests.migrated import run_aside, with_store
from tests.raw_client import ChatRequest, read_all, read_until
from tests.service import Deployment, Service, wait_until
from tests.service_config import classes_spec

VERSIONS = "SELECT request_id, version FROM usage ORDER BY started_at"
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
SERVED = "loopback-forte"
REPLACES = '"the config replaces what serves a class"'


def do_switch(deployment: Deployment) -> int:
    """The number of the new version."""
    url = f"sqlite:///{deployment.store}"
    return run_aside(lambda: with_store(url, switch)).number


def go_back(deployment: Deployment, number: int = 1) -> None:
    run_aside(lambda: with_store(f"sqlite:///{deployment.store}", lambda it: serve_version(it, number)))


def asked_models(upstream: LoopbackUpstream) -> list[str]:
    return [request.json["model"] for request in upstream.requests]


def logged_requests(service: Service) -> list[dict[str, Any]]:
    """The log lines of chats whose credit was held."""
    lines = [json.loads(line) for line in service.output.splitlines() if line.startswith("{")]
    return [line for line in lines if "completion_id" in line]


def versions_in_log(service: Service) -> dict[str, int]:
    return {line["request_id"]: line["version"] for line in logged_requests(service)}


@pytest.fixture(scope="module")
def running(shared_upstream: LoopbackUpstream) -> Iterator[Service]:
    with Service(classes_spec(shared_upstream.base_url)) as service:
        yield service


@pytest.fixture
def account(running: Service, upstream: LoopbackUpstream) -> Iterator[Account]:
    """An account on a service that serves version 1 of forte."""
    running.config.write_text(running.spec.toml())
    go_back(running)
    running.reload()
    with open_account(running) as opened:
        yield opened


def test_the_next_request_is_served_by_the_new_version(account: Account, upstream: LoopbackUpstream) -> None:
    """A stream that began before the switch ends on what it began with; after going back, the old one serves."""
    pause, service = Pause(), account.service
    upstream.script(Sse([ROLE, said("half"), pause, said(" done"), STOP, usage_chunk()]))
    before = len(logged_requests(service))
    with account.api.open_chat(stream=True) as connection:
        read_until(connection, b'"half"')
        number = do_switch(service)
        assert account.api.chat().status == 200
        pause.release()
        assert b"[DONE]" in read_all(connection)
    assert asked_models(upstream) == [SERVED, ROUTE.model]
    wait_until(lambda: len(logged_requests(service)) == before + 2, "a log line for each request")
    assert [line["version"] for line in logged_requests(service)[before:]] == [number, 1]
    go_back(service)
    assert account.api.chat().status == 200
    assert asked_models(upstream)[-1] == SERVED


def test_log_and_metering_row_have_the_version(account: Account, upstream: LoopbackUpstream) -> None:
    """Plain, streamed and with tools, for both versions; the export has it too."""
    service, before, expected = account.service, len(account.service.ledger.query(VERSIONS)), dict[str, int]()
    for is_switched in (False, True):
        number = do_switch(service) if is_switched else 1
        for fields in ({}, {"stream": True}, {"tools": [TOOL]}):
            reply = account.api.chat(**fields)
            assert reply.status == 200
            expected[reply.headers["x-request-id"]] = number
    rows = {row["request_id"]: row["version"] for row in service.ledger.query(VERSIONS)[before:]}
    assert rows == expected
    wait_until(lambda: expected.keys() <= versions_in_log(service).keys(), "a log line for each request")
    assert {request_id: versions_in_log(service)[request_id] for request_id in expected} == expected
    exported = list(csv.DictReader(io.StringIO(run_command(service, "ledger", "export", "--account", account.email))))
    assert [row["version"] for row in exported if row["kind"] == "charge"] == ["1"] * 3 + [str(number)] * 3


@pytest.mark.parametrize("has_mistakes", [True, False], ids=["mistakes", "without a provider in use"])
def test_a_config_that_cannot_be_read_does_not_stop_a_switch(
    account: Account, upstream: LoopbackUpstream, has_mistakes: bool
) -> None:
    """The last good config serves the new version, and the log says what is wrong; going back works, too."""
    service = account.service
    renamed = service.spec.toml().replace("loopback]", "other]").replace('"loopback"', '"other"')
    times = service.output.count(NOT_READ)
    service.config.write_text("[server]\nprot = 1\n" if has_mistakes else renamed)
    do_switch(service)
    assert account.api.chat().status == 200
    service.process.send_signal(signal.SIGHUP)
    wait_until(lambda: service.output.count(NOT_READ) > times, "the refusal")
    assert has_mistakes or "needs the provider 'loopback'" in service.output
    go_back(service)
    assert account.api.chat().status == 200
    assert asked_models(upstream) == [ROUTE.model, SERVED]


def test_a_restart_serves_what_was_promoted(deploy: Deploy, upstream: LoopbackUpstream) -> None:
    """After kill -9 right after the switch too. Without the provider of the version, the start fails and says why."""
    deployment = deploy(CREDIT_NANO)
    deployment.start()
    do_switch(deployment)
    deployment.processes[-1].kill()
    request = ChatRequest(1, stream=True)
    process = deployment.start()

    async def begin_and_die() -> None:
        replying, _ = await begin(deployment, process, request, upstream)
        process.kill()
        await replying

    asyncio.run(begin_and_die())
    assert asked_models(upstream) == [ROUTE.model]
    deployment.start()
    [swept] = deployment.ledger.query(VERSIONS)
    assert (swept["request_id"], swept["version"]) == (request.request_id, 2), "by the mark of the killed process"
    deployment.processes[-1].stop()
    deployment.config.write_text(deployment.spec.toml().replace("loopback]", "other]").replace('"loopback"', '"other"'))
    failed = deployment.begin()
    assert failed.wait_until_ended() != 0
    assert "needs the provider 'loopback'" in failed.output
    assert "Traceback" not in failed.output


def test_a_process_with_another_config_says_what_it_replaces(deploy: Deploy) -> None:
    """Once in its log, with what to do. The history has one line for each version, and the first serves on."""
    deployment = deploy(CREDIT_NANO)
    first = deployment.start()
    deployment.config.write_text(deployment.spec.toml().replace(SERVED, "another"))
    second = deployment.start()
    [line] = [json.loads(line) for line in second.output.splitlines() if REPLACES in line]
    assert (line["class_id"], line["before"], line["version"]) == ("forte", 1, 2)
    assert "'cadenza class adopt forte'" in line["advice"]
    assert REPLACES not in first.output
    events = deployment.cli("class", "history", "forte", "--json").stdout
    assert [event["detail"] for event in json.loads(events)] == [
        f"version 1: loopback/{SERVED}",
        "version 2: loopback/another",
    ]
