"""What a head costs before its key is known: anybody may send one, so the cost of each must be small.

The cost is the CPU time of the service's process, all threads, from the connection to the end of the reply, less what a
plain request for the same path takes: that is for the page or the refusal itself. The best of several tries counts,
because the process also has other work, and a busy machine makes CPU time longer.
"""

import re
from collections.abc import Iterable, Iterator

import msgspec
import pytest

from tests.hostile.head_maker import Head, Place, plain_head, random_heads
from tests.loopback import LoopbackUpstream
from tests.processes import thread_cpu_ns
from tests.raw_client import RawClient, Reply
from tests.service import Service
from tests.service_config import classes_spec
from tests.visitor import Visitor

HEAD_CPU_NS = 5_000_000
TRIES = 8
SEED, HEADS = 41, 100
PAYMENTS = '[payments.stripe]\nsecret_key_env = "TEST_STRIPE"\nwebhook_secret_env = "TEST_STRIPE"\n'
LENGTH = re.compile(rb"content-length: (\d+)\r\n")
ANSWERED = (200, 204, 303, 400, 401, 403, 404, 405, 414, 421, 501)
OF_PROGRAMS = ("/v1/usage", "/v1/nothing", "/platform/api/keys", "/platform/api/nothing", "/metrics")
TOO_LONG = "a=" + "x" * 4095
TOO_MANY = "a=1&" * 50 + "a=1"


@pytest.fixture(scope="module")
def quiet(shared_upstream: LoopbackUpstream) -> Iterator[Service]:
    """A service that has nothing else to do. Its pages are loaded, and it takes payments."""
    spec = msgspec.structs.replace(classes_spec(shared_upstream.base_url), more_toml=PAYMENTS)
    with pytest.MonkeyPatch.context() as variables:
        variables.setenv("TEST_STRIPE", "test")
        with Service(spec) as running:
            Visitor(running.port).get("/sign-in")
            yield running


def send(service: Service, head: Head) -> int:
    """The status of the reply."""
    with RawClient(service.port, None).connect() as connection:
        connection.sendall(head.data)
        received = b""
        while more := connection.recv(65_536):
            received += more
            start, found = received.find(b"\r\n\r\n") + 4, LENGTH.search(received)
            if start > 3 and found and len(received) >= start + int(found[1]):
                break
    return Reply(received).status


def cost_ns(service: Service, head: Head, enough_ns: int = 0, tries: int = TRIES) -> int:
    """The least CPU time of some tries; those end early if it is below `enough_ns`."""
    best_ns = 10**12
    for number in range(tries):
        before_ns = thread_cpu_ns(service.pid)
        status = send(service, head)
        best_ns = min(best_ns, thread_cpu_ns(service.pid) - before_ns)
        assert status in ANSWERED, (status, head.place, head.label)
        if best_ns < enough_ns or (number and best_ns > 20 * HEAD_CPU_NS):
            break
    return best_ns


def dear_heads(service: Service, heads: Iterable[Head]) -> list[tuple[float, Place, str]]:
    """Those that cost too much, with their milliseconds."""
    plain_ns, found = dict[Place, int](), list[tuple[float, Place, str]]()
    for head in heads:
        if head.place not in plain_ns:
            plain_ns[head.place] = cost_ns(service, plain_head(head.place), HEAD_CPU_NS // 4)
        over_ns = cost_ns(service, head, plain_ns[head.place] + HEAD_CPU_NS // 2) - plain_ns[head.place]
        if over_ns > HEAD_CPU_NS:
            found.append((round(over_ns / 1e6, 1), head.place, head.label))
    return sorted(found, reverse=True)


def test_any_head_is_cheap(quiet: Service) -> None:
    """A head of up to 64 KiB, whatever is in it, costs less than 5 ms of CPU time before its key is known."""
    assert dear_heads(quiet, random_heads(SEED, HEADS)) == []


def test_a_head_has_at_most_256_fields(quiet: Service) -> None:
    """One field more is 400, on a page and on /v1."""
    for path, status in (("/sign-in", 200), ("/v1/models", 401)):
        usual = len(plain_head(("GET", path)).data.split(b"\r\n")) - 3
        heads = [Head("", ("GET", path), path, [("a", "b")] * (count - usual)) for count in (256, 257)]
        assert [send(quiet, head) for head in heads] == [status, 400]


@pytest.mark.parametrize("path", ["/sign-in", "/sign-up", "/sign-out"])
def test_the_form_of_a_stranger_is_small(quiet: Service, path: str) -> None:
    """Without a session a form has at most 16 KiB, which is enough for the longest password. It is refused unread."""
    visitor = Visitor(quiet.port)
    visitor.get("/sign-in")
    seen = visitor.post(path, {"email": "a@example.org", "password": "\N{GRINNING FACE}" * 1024})
    assert "too large" not in seen.words
    form = {"content-type": "application/x-www-form-urlencoded"}
    seen = visitor.send("POST", path, b"a=" + b"%4" * 8192, form)
    assert (seen.status, "without a session it has at most 16 KiB" in seen.words) == (400, True)


@pytest.mark.parametrize(
    "path", ["/v1/usage", "/v1/nothing", "/platform/api/keys", "/platform/api/nothing", "/metrics"]
)
def test_a_query_that_is_too_large_is_refused(quiet: Service, path: str) -> None:
    """Every path of a program answers 400 in the error shape, before it looks for a key or for the path itself."""
    for query, end in ((TOO_LONG, "4,097 bytes. Send at most 4,096."), (TOO_MANY, "51 fields. Send at most 50.")):
        message = RawClient(quiet.port, None).get(f"{path}?{query}").error(400)
        assert message == f"The query of the address, behind its '?', has {end}"


@pytest.mark.parametrize("path", ["/sign-in", "/", "/nothing", "/openapi.json", "/static/a/b"])
def test_a_page_says_that_its_query_is_too_large(quiet: Service, path: str) -> None:
    """A browser gets a page with the sentence, also where there is nothing, and no redirect carries the query on."""
    for query in (TOO_LONG, TOO_MANY):
        seen = Visitor(quiet.port).get(f"{path}?{query}")
        assert seen.status == 400
        assert seen.headers["content-type"].startswith("text/html")
        assert "Send at most" in seen.words
        assert seen.headers["content-security-policy"]


def test_a_query_within_the_limits_is_read(quiet: Service) -> None:
    """A query of exactly 4,096 bytes or 50 fields is accepted, and its fields take effect on a page and on /v1."""
    longest, most = "note=signed-out&a=", "a=1&" * 49 + "note=signed-out"
    longest += "x" * (4096 - len(longest))
    for query in (longest, most):
        seen = Visitor(quiet.port).get(f"/sign-in?{query}")
        assert (seen.status, "You are signed out." in seen.words) == (200, True)
    client = RawClient(quiet.port, quiet.key)
    for query in ("start=soon&a=".ljust(4096, "x"), "a=1&" * 49 + "start=soon"):
        assert "start" in client.get(f"/v1/usage?{query}").error(400)


def test_a_path_that_is_too_long_is_refused(quiet: Service) -> None:
    """A path above 2 KiB gets 414 in the error shape, wherever it leads; one of 2 KiB is looked for."""
    client = RawClient(quiet.port, None)
    for start in ("/v1/models/", "/keys/", "/healthz/", "/"):
        longest = start.ljust(2048, "a")
        assert client.get(longest).status in (303, 401, 404)
        assert "at most 2 KiB" in client.get(longest + "a").error(414)
        assert client.get("http://here" + longest + "%").error(414)
