"""7. JSON that holds the interpreter: whatever the body, other requests go on, and memory is bounded."""

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.hostile.watch import watching
from tests.loopback import LoopbackUpstream
from tests.processes import children, is_alive, stopped
from tests.raw_client import RawClient, Reply, read_all
from tests.service import Service, wait_until
from tests.service_config import classes_spec

MIB = 2**20
BODY_BYTES = 32 * MIB - 300
AT_ONCE = 2
MEMORY_BYTES = AT_ONCE * 32 * MIB + 768 * MIB  # the bodies, and the child that parses them
USER = b'{"role":"user","content":"hi"}'
HEAD = b'{"messages":[%b],' % USER


def many(head: bytes, item: bytes, tail: bytes) -> bytes:
    """As many items as fit into a body."""
    count = (BODY_BYTES - len(head) - len(tail)) // len(item) - 1
    return head + item * count + item.rstrip(b",") + tail


def schema() -> bytes:
    head = HEAD + b'"tools":[{"type":"function","function":{"name":"a","parameters":{'
    return head + b",".join(b'"%07x":1' % number for number in range(BODY_BYTES // 13)) + b"}}}]}"


BODIES: dict[str, Callable[[], bytes]] = {
    "messages": lambda: many(b'{"messages":[', b"[],", b"]}"),
    "tiny messages": lambda: many(b'{"messages":[', USER + b",", b"]}"),
    "schema keys": schema,
    "a surrogate pair in an unknown field": lambda: many(HEAD + b'"x":["\\ud83d\\ude00",', b"[],", b'],"n":2}'),
}


@pytest.fixture(scope="module")
def service(shared_upstream: LoopbackUpstream) -> Iterator[Service]:
    with Service(classes_spec(shared_upstream.base_url)) as running:
        yield running


def ask_until_read(api: RawClient, body: bytes) -> Reply:
    """Send a body again after a 429, which it gets if its turn does not come soon on a busy machine."""
    while (reply := api.post(body)).status == 429:
        time.sleep(int(reply.headers["retry-after"]))
    return reply


@pytest.mark.slow(reason="bodies of 32 MiB, two at once, in every form")
@pytest.mark.parametrize("case", BODIES)
def test_no_body_holds_up_other_requests(service: Service, case: str) -> None:
    """Two bodies of 32 MiB at once are refused with a 400, within the memory, and the work on them is the child's."""
    body = BODIES[case]()
    keys = [service.create_key() for _ in range(AT_ONCE)]
    with watching(service.process) as watch, ThreadPoolExecutor(AT_ONCE) as clients:
        replies = list(clients.map(lambda key: ask_until_read(RawClient(service.port, key), body), keys))
    assert {reply.status for reply in replies} == {400}
    assert watch.own_cpu_s < 2 * watch.children_cpu_s  # to receive the bodies costs half of the work on them at most
    assert watch.rss_bytes < MEMORY_BYTES


def test_a_child_that_hangs_holds_up_nobody(service: Service) -> None:
    """While the child has a body and does not answer, others are served."""
    api, body = RawClient(service.port, service.key), BODIES["messages"]()
    assert ask_until_read(api, body).status == 400
    with api.connect() as connection:
        with stopped(children(service.pid)):
            connection.sendall(api.chat_bytes(body))
            statuses = [api.chat().status for _ in range(10)]
        assert Reply(read_all(connection)).status == 400
    assert statuses == [200] * 10


def test_the_child_ends_with_a_killed_service(shared_upstream: LoopbackUpstream) -> None:
    """Even while it works on a body, the child does not outlive the service."""
    with Service(classes_spec(shared_upstream.base_url)) as service:
        api = RawClient(service.port, service.key)
        assert api.post(HEAD + b'"x":"%b","n":2}' % (b"a" * MIB)).status == 400
        [child] = children(service.pid)
        with api.connect() as connection:
            connection.sendall(api.chat_bytes(BODIES["tiny messages"]()))
            service.process.kill()
        wait_until(lambda: not is_alive(child), "the end of the child")
        service.start()


def test_a_client_that_leaves_ends_the_work_on_its_body(service: Service) -> None:
    """Clients that send large bodies and leave do not keep the next one waiting."""
    api = RawClient(service.port, service.key)
    request = api.chat_bytes(BODIES["tiny messages"]())
    for _ in range(AT_ONCE):
        with api.connect() as connection:
            connection.sendall(request)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    text = "A long text of many words. " * 10_000
    assert api.chat(messages=[{"role": "user", "content": text}], max_tokens=5).status == 200
