"""Idempotency-Key: one key of an account is one reply and one charge, even for two at the same instant."""

import json
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from tests.contract.purse import PROMPT_TOKENS, Purse, forte_nano, open_purse
from tests.contract.wire import MESSAGES, Reply, Wire, read_until
from tests.loopback import LoopbackUpstream, Pause, Raw, Sse, Status, chunk, said
from tests.service import Service, ordinary_spec

ROLE = chunk({"role": "assistant", "content": ""})
STOP = chunk(finish="stop")
COST_NANO = forte_nano(11, 7)
DAY_MS = 24 * 60 * 60 * 1000
SECOND_MS = 1000
ROUNDS = 20
AT_ONCE = 4


@pytest.fixture
def purse(service: Service) -> Iterator[Purse]:
    with open_purse(service) as opened:
        yield opened


def ask(wire: Wire, key: str, *, stream: bool = False, text: str = "Say hello.") -> Reply:
    body = {"messages": [{"role": "user", "content": text}], "stream": stream}
    return wire.post(body, {"idempotency-key": key})


def chat_bytes(wire: Wire, key: str) -> bytes:
    """A streaming request with this key, as it goes over the wire."""
    return wire.chat_bytes(json.dumps({"messages": MESSAGES, "stream": True}).encode(), f"idempotency-key: {key}")


def completion_id(reply: Reply, *, stream: bool) -> str:
    first = reply.body.partition(b"\n")[0].removeprefix(b"data: ") if stream else reply.body
    return str(json.loads(first)["id"])


@pytest.mark.parametrize("stream", [False, True])
def test_a_key_is_served_once(purse: Purse, upstream: LoopbackUpstream, stream: bool) -> None:
    """The second request is a 409 that names both ids of the first, is not to be retried, and costs nothing."""
    first = ask(purse.wire, "once", stream=stream)
    assert first.status == 200
    for _ in range(2):
        second = ask(purse.wire, "once", stream=stream)
        message = second.error(409)
        assert second.headers["x-should-retry"] == "false"
        assert first.headers["x-request-id"] in message
        assert completion_id(first, stream=stream) in message
    assert len(upstream.requests) == 1
    assert purse.charge()["amount_nano"] == -COST_NANO


def test_a_key_stands_for_itself_not_for_the_request(purse: Purse, upstream: LoopbackUpstream) -> None:
    """Another body under the same key is still a repetition, and the same body under another key is not."""
    ask(purse.wire, "one")
    ask(purse.wire, "one", text="Something else.").error(409)
    assert ask(purse.wire, "One").status == 200
    assert purse.spent_nano == 2 * COST_NANO


def test_a_request_without_a_key_is_never_a_repetition(purse: Purse, upstream: LoopbackUpstream) -> None:
    """No header and an empty one are no key."""
    statuses = [purse.wire.chat().status, purse.wire.chat().status, ask(purse.wire, "").status]
    assert [*statuses, ask(purse.wire, "").status] == [200] * 4
    assert purse.spent_nano == 4 * COST_NANO


def test_a_key_may_be_any_text(purse: Purse, upstream: LoopbackUpstream) -> None:
    """A key of many characters is told apart by its last one."""
    assert ask(purse.wire, "k" * 4_000 + "1").status == 200
    assert ask(purse.wire, "k" * 4_000 + "2").status == 200
    ask(purse.wire, "k" * 4_000 + "1").error(409)


def test_a_key_is_kept_as_its_digest(service: Service, purse: Purse, upstream: LoopbackUpstream) -> None:
    """The client's own text stands in no file and in no line of the log."""
    ask(purse.wire, "canary-of-a-key")
    ask(purse.wire, "canary-of-a-key").error(409)
    assert [path.name for path in service.files() if b"canary-of-a-key" in path.read_bytes()] == []


def test_accounts_do_not_share_their_keys(service: Service, purse: Purse, upstream: LoopbackUpstream) -> None:
    """Two accounts may use the same text; each is served once and pays its own."""
    with open_purse(service) as other:
        assert [ask(wire, "shared").status for wire in (purse.wire, other.wire)] == [200, 200]
        assert [ask(wire, "shared").status for wire in (purse.wire, other.wire)] == [409, 409]
        assert (purse.spent_nano, other.spent_nano) == (COST_NANO, COST_NANO)


def test_all_keys_of_an_account_share_theirs(service: Service, purse: Purse, upstream: LoopbackUpstream) -> None:
    """The account is who repeats itself, whichever API key it uses."""
    other = Wire(service.port, purse.create_key())
    ask(purse.wire, "of the account")
    ask(other, "of the account").error(409)
    assert purse.spent_nano == COST_NANO


def test_a_repetition_of_a_running_request_is_refused(purse: Purse, upstream: LoopbackUpstream) -> None:
    """While the first stream runs the second is told so, and the first goes on to its end."""
    pause = Pause()
    upstream.script(Sse([ROLE, said("first word"), pause, STOP]))
    with purse.wire.connect() as connection:
        connection.sendall(chat_bytes(purse.wire, "running"))
        head = read_until(connection, b"first word")
        message = ask(purse.wire, "running").error(409)
        assert any(name.encode() in head for name in message.split() if name.startswith("req_"))
        pause.release()
        read_until(connection, b"[DONE]")
    assert len(upstream.requests) == 1
    purse.charge()


@pytest.mark.parametrize("stream", [False, True])
def test_of_several_at_the_same_instant_one_is_served(purse: Purse, upstream: LoopbackUpstream, stream: bool) -> None:
    """In every round one request is answered, the others name it, and only it is charged."""
    start = threading.Barrier(AT_ONCE)

    def fire(key: str) -> Reply:
        start.wait(10)
        return ask(purse.wire, key, stream=stream)

    with ThreadPoolExecutor(AT_ONCE) as threads:
        for number in range(ROUNDS):
            replies = list(threads.map(fire, [f"race-{number}"] * AT_ONCE))
            [served] = [reply for reply in replies if reply.status == 200]
            messages = [reply.error(409) for reply in replies if reply is not served]
            assert all(completion_id(served, stream=stream) in message for message in messages)
    assert len(upstream.requests) == ROUNDS
    assert [charge["amount_nano"] for charge in purse.charges] == [-COST_NANO] * ROUNDS


def test_a_key_may_be_used_again_after_a_failure(purse: Purse, upstream: LoopbackUpstream) -> None:
    """A 502 charged nothing: the same key is served then, and only once."""
    upstream.script(Status(500), Status(500))
    assert [ask(purse.wire, "retry").status for _ in range(4)] == [502, 502, 200, 409]
    assert purse.charge()["amount_nano"] == -COST_NANO


def test_a_key_may_be_used_again_after_a_refusal(service: Service, upstream: LoopbackUpstream) -> None:
    """Neither a 400 nor a 402 uses a key up."""
    with open_purse(service, 0) as purse:
        purse.wire.post({"messages": []}, {"idempotency-key": "mended"}).error(400)
        ask(purse.wire, "mended").error(402, "insufficient_quota")
        purse.give(10**9)
        assert ask(purse.wire, "mended").status == 200
        ask(purse.wire, "mended").error(409)


def test_a_key_may_be_used_again_by_who_left_before_anything(purse: Purse, upstream: LoopbackUpstream) -> None:
    """A client whose connection broke before the first word may ask again with the same key."""
    pause = Pause()
    upstream.script(Raw([pause]))
    with purse.wire.connect() as connection:
        connection.sendall(chat_bytes(purse.wire, "left early"))
        pause.wait_until_reached()
    purse.wait_until_ended()
    assert ask(purse.wire, "left early").status == 200


def test_a_key_is_used_up_by_who_left_amid_a_stream(purse: Purse, upstream: LoopbackUpstream) -> None:
    """What was delivered was charged, so there is no second charge under the same key."""
    upstream.script(Sse([ROLE, said("first word"), Pause()]))
    with purse.wire.connect() as connection:
        connection.sendall(chat_bytes(purse.wire, "left late"))
        read_until(connection, b"first word")
    purse.wait_until_ended()
    ask(purse.wire, "left late").error(409)
    assert purse.charge()["amount_nano"] == -forte_nano(PROMPT_TOKENS, 2)


@pytest.mark.parametrize(("age_ms", "status"), [(DAY_MS - 60 * SECOND_MS, 409), (DAY_MS + SECOND_MS, 200)])
def test_a_key_is_remembered_for_a_day(
    service: Service, purse: Purse, upstream: LoopbackUpstream, age_ms: int, status: int
) -> None:
    """Within 24 hours it is a repetition, after them a new request."""
    served = ask(purse.wire, "a day").json["id"]
    with closing(sqlite3.connect(service.folder / "data" / "cadenza.db", timeout=10)) as store, store:
        store.execute("UPDATE idempotency SET created_at = created_at - ? WHERE request_id = ?", (age_ms, served))
    assert ask(purse.wire, "a day").status == status


def test_a_key_outlives_the_process(upstream: LoopbackUpstream) -> None:
    """What was served before a restart is still a repetition after it."""
    with Service(ordinary_spec(upstream.base_url)) as service, open_purse(service) as purse:
        ask(purse.wire, "restart")
        service.stop()
        service.start()
        purse.wire.port = service.port
        ask(purse.wire, "restart").error(409)
        assert purse.spent_nano == COST_NANO
