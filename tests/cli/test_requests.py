"""cadenza explain and cadenza tail, beside a service with two routes."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from cadenza.cli.request_output import DatedLines
from cadenza.core.spans import DAY_MS
from cadenza.store.tables.request_details import RecentRequest
from tests.account import Account
from tests.cli.program import PROGRAM
from tests.environment import environment
from tests.loopback import LoopbackUpstream, Status
from tests.service import CREDIT_NANO, Service, wait_until
from tests.service_config import RouteSpec, ServiceSpec

WAIT_S = 60.0
NOON_MS = 1_795_089_600_000  # of 19 November 2026, UTC
IN_STORE = "SELECT 1 FROM request_details WHERE request_id = ?"


@pytest.fixture(scope="module")
def second() -> Iterator[LoopbackUpstream]:
    with LoopbackUpstream() as upstream:
        yield upstream


@pytest.fixture(scope="module")
def service(second: LoopbackUpstream) -> Iterator[Service]:
    """Its first route always fails, and its second one answers."""
    with LoopbackUpstream() as first:
        first.always(Status(500))
        routes = {"forte": [RouteSpec("acme", "large"), RouteSpec("beta", "large", order=1)]}
        providers = {"acme": first.base_url, "beta": second.base_url}
        with Service(ServiceSpec(providers, routes)) as running:
            yield running


@pytest.fixture(scope="module")
def account(service: Service) -> Account:
    return Account(service, CREDIT_NANO)


def ask(account: Account, status: int, **fields: object) -> str:
    """Make a request that ends with this status, wait until its details are in the store, and return its id."""
    reply = account.api.chat(**fields)
    assert reply.status == status
    request_id = reply.headers["x-request-id"]
    wait_until(lambda: bool(account.service.ledger.query(IN_STORE, request_id)), "its details in the store")
    return request_id


def test_a_retried_request_is_explained(service: Service, account: Account) -> None:
    """Key, class and version, the route that failed and why, the one that answered, and the sum of the charge."""
    request_id = ask(account, 200)
    done = service.cli("explain", request_id)
    charge = account.charges[-1]
    for line in (
        f"account    {account.email}",
        "class      forte, version 1",
        "route      beta/large",
        f"charged    ${-charge['amount_nano'] / 10**9:.8f}\n           ",  # how it is computed
        "end        200: It was served.",
        "acme/large failed: it answers with an error (failed, status 500)",
        "beta/large began to answer",
        "the charge was in the store",
        "credit was held",
    ):
        assert line in done.stdout
    [found] = json.loads(service.cli("explain", charge["completion_id"], "--json").stdout)
    assert sum(part["amount_nano"] for part in found["charge"]) == -charge["amount_nano"]
    assert found["request_id"] == request_id


def test_a_request_that_failed_or_was_refused_is_explained(
    service: Service, account: Account, second: LoopbackUpstream
) -> None:
    """The end is a sentence with what to do, and nothing was charged."""
    refused = service.cli("explain", ask(account, 400, model="nope")).stdout
    assert "completion none: no credit was held" in refused
    second.script(Status(503))
    failed = service.cli("explain", ask(account, 502)).stdout
    assert "end        502: No route of the class answered." in failed
    assert "beta/large failed: it answers with an error (failed, status 503)" in failed
    assert all(shown.endswith("charged    nothing\n") for shown in (refused, failed))


@pytest.mark.parametrize(
    ("text", "said"), [("req_unknown", "refused before its key was known"), ("sk-cdz-x", "This is an API key")]
)
def test_an_unknown_id_is_a_sentence(service: Service, text: str, said: str) -> None:
    """It says where to look."""
    done = service.cli("explain", text)
    assert (done.returncode, said in done.stderr) == (1, True)


def test_tail_shows_what_is_wanted(service: Service, account: Account) -> None:
    """By status, key, class and account; as lines or as JSON; a mistake in a filter is a sentence."""
    request_id = ask(account, 400, model="nope")
    line = service.cli("tail", "--once", "--status", "4xx", "--account", account.email, "--last", "1").stdout
    assert " 400 –          invalid " in line
    assert line.rstrip().endswith(request_id)
    [found] = service.cli("tail", "--once", "--json", "--last", "1", "--status", "4xx").stdout.splitlines()
    assert json.loads(found)["request_id"] == request_id
    assert service.cli("tail", "--once", "--key", account.create_key()).stdout == ""  # a key that was not used
    assert service.cli("tail", "--once", "--class", "mezzo").stdout == ""
    assert service.cli("tail", "--once", "--slow", "1m").stdout == ""
    for option, wrong, said in (
        ("--status", "6xx", "'6xx' is not a status."),
        ("--slow", "soon", "'soon' is not a length of time."),
        ("--class", "auto", "'auto' is not a class."),
        ("--account", "nobody@example.org", "There is no account for 'nobody@example.org'."),
        ("--key", "sk-cdz-00000", "No key matches 'sk-cdz-00000'."),
    ):
        done = service.cli("tail", option, wrong)
        assert (done.returncode, done.stderr.startswith(f"cadenza: {said}")) == (1, True), done.stderr


def test_lines_of_another_day_stand_below_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Yesterday's requests stand below its date, and the first one of today below today's."""
    lines = DatedLines(NOON_MS)
    for at_ms in (NOON_MS - DAY_MS, NOON_MS - DAY_MS + 1_000, NOON_MS, NOON_MS + 1_000):
        lines.print(RecentRequest("req_1", None, at_ms, *[""] * 8, 200, *[""] * 2, *[0] * 5))  # type: ignore[arg-type, call-arg]
    shown = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert shown == ["2026-11-18", "12:00:00", "12:00:01", "2026-11-19", "12:00:00", "12:00:01"]


def test_tail_follows_until_ctrl_c(service: Service, account: Account) -> None:
    """It shows a request that ends meanwhile, and ends cleanly."""
    ask(account, 400, model="nope")
    with subprocess.Popen(
        [PROGRAM, "tail", "--last", "1", "--config", service.config],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(),
    ) as process:
        assert process.stdout
        process.stdout.readline()  # it follows now
        assert account.api.chat().status == 200
        assert account.email in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert (process.communicate(timeout=WAIT_S)[0], process.returncode) == ("", 0)


def test_tail_ends_with_its_pipe(service: Service, account: Account) -> None:
    """Also if no further request comes."""
    ask(account, 400, model="nope")
    ours, theirs = os.pipe()
    with subprocess.Popen(
        [PROGRAM, "tail", "--last", "1", "--config", service.config], stdout=theirs, env=environment()
    ) as process:
        os.close(theirs)
        assert os.read(ours, 1)
        os.close(ours)
        assert process.wait(WAIT_S) == 0
