"""Idempotency-Key: one key of an account gives one reply and one charge, even for concurrent requests."""

import json
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from tests.account import PROMPT_TOKENS, Account, forte_nano, open_account
from tests.loopback import ROLE, STOP, LoopbackUpstream, Pause, Raw, Sse, said
from tests.raw_client import MESSAGES, RawClient, Reply, read_until
from tests.service import Service
from tests.service_config import ordinary_spec
from tests.store.rows import sum_up_file

COST_NANO = forte_nano(11, 7)
DAY_MS = 24 * 60 * 60 * 1000
SECOND_MS = 1000
ROUNDS = 10
AT_ONCE = 4


def ask(api: RawClient, key: str, *, stream: bool = False, text: str = "Say hello.") -> Reply:
    body = {"messages": [{"role": "user", "content": text}], "stream": stream}
    return api.post(body, {"idempotency-key": key})


def chat_bytes(api: RawClient, key: str) -> bytes:
    """The bytes of a streaming request with this idempotency key."""
    return api.chat_bytes(json.dumps({"messages": MESSAGES, "stream": True}).encode(), f"idempotency-key: {key}")


def completion_id(reply: Reply, *, stream: bool) -> str:
    first = reply.body.partition(b"\n")[0].removeprefix(b"data: ") if stream else reply.body
    return str(json.loads(first)["id"])


def test_key_is_stored_as_its_digest(service: Service, account: Account, upstream: LoopbackUpstream) -> None:
    """The key's text is in no file and not in the log."""
    ask(account.api, "canary-of-a-key")
    ask(account.api, "canary-of-a-key").error(409)
    assert [path.name for path in service.files() if b"canary-of-a-key" in path.read_bytes()] == []


def test_accounts_do_not_share_keys(service: Service, account: Account, upstream: LoopbackUpstream) -> None:
    """Two accounts may use the same key; each is served once and pays for itself."""
    with open_account(service) as other:
        assert [ask(api, "shared").status for api in (account.api, other.api)] == [200, 200]
        assert [ask(api, "shared").status for api in (account.api, other.api)] == [409, 409]
        assert (account.spent_nano, other.spent_nano) == (COST_NANO, COST_NANO)


def test_repetition_of_a_running_request_is_409(account: Account, upstream: LoopbackUpstream) -> None:
    """While the first stream runs a repetition is a 409, and the first runs to its end."""
    pause = Pause()
    upstream.script(Sse([ROLE, said("first word"), pause, STOP]))
    with account.api.connect() as connection:
        connection.sendall(chat_bytes(account.api, "running"))
        head = read_until(connection, b"first word")
        message = ask(account.api, "running").error(409)
        assert any(name.encode() in head for name in message.split() if name.startswith("req_"))
        pause.release()
        read_until(connection, b"[DONE]")
    assert len(upstream.requests) == 1
    account.charge()


@pytest.mark.parametrize("stream", [False, True])
def test_one_of_several_concurrent_requests_is_served(
    account: Account, upstream: LoopbackUpstream, stream: bool
) -> None:
    """Of concurrent requests with one key one is served and charged, and the others name it."""
    start = threading.Barrier(AT_ONCE)

    def fire(key: str) -> Reply:
        start.wait(60)
        return ask(account.api, key, stream=stream)

    with ThreadPoolExecutor(AT_ONCE) as threads:
        for number in range(ROUNDS):
            replies = list(threads.map(fire, [f"race-{number}"] * AT_ONCE))
            [served] = [reply for reply in replies if reply.status == 200]
            messages = [reply.error(409) for reply in replies if reply is not served]
            assert all(completion_id(served, stream=stream) in message for message in messages)
    assert len(upstream.requests) == ROUNDS
    assert [charge["amount_nano"] for charge in account.charges] == [-COST_NANO] * ROUNDS


def test_key_is_used_up_by_an_early_disconnect(account: Account, upstream: LoopbackUpstream) -> None:
    """A client that disconnected while the upstream was at work has paid for the prompt: its key was used."""
    pause = Pause()
    upstream.script(Raw([pause]))
    with account.api.connect() as connection:
        connection.sendall(chat_bytes(account.api, "left early"))
        pause.wait_until_reached()
    account.wait_until_ended()
    ask(account.api, "left early").error(409)
    assert account.charge()["amount_nano"] == -forte_nano(PROMPT_TOKENS, 0)


@pytest.mark.parametrize(("age_ms", "status"), [(DAY_MS - 60 * SECOND_MS, 409), (DAY_MS + SECOND_MS, 200)])
def test_key_is_remembered_for_a_day(
    service: Service, account: Account, upstream: LoopbackUpstream, age_ms: int, status: int
) -> None:
    """Within 24 hours a key is a repetition, afterwards a new request."""
    served = ask(account.api, "a day").json["id"]
    with closing(sqlite3.connect(service.folder / "data" / "cadenza.db", timeout=60)) as store, store:
        store.execute("UPDATE idempotency SET created_at = created_at - ? WHERE completion_id = ?", (age_ms, served))
        store.execute("UPDATE usage SET started_at = started_at - ? WHERE completion_id = ?", (age_ms, served))
        sum_up_file(store)
    assert ask(account.api, "a day").status == status


def test_key_outlives_the_process(upstream: LoopbackUpstream) -> None:
    """A key that was served before a restart is a repetition after it."""
    with Service(ordinary_spec(upstream.base_url)) as service, open_account(service) as account:
        ask(account.api, "restart")
        service.stop()
        service.start()
        account.api.port = service.port
        ask(account.api, "restart").error(409)
        assert account.spent_nano == COST_NANO


def test_key_may_be_used_again_after_a_refusal(service: Service, upstream: LoopbackUpstream) -> None:
    """Neither a 400 nor a 402 uses a key up."""
    with open_account(service, 0) as account:
        account.api.post({"messages": []}, {"idempotency-key": "mended"}).error(400)
        ask(account.api, "mended").error(402, "insufficient_quota")
        account.give(10**9)
        assert ask(account.api, "mended").status == 200
        ask(account.api, "mended").error(409)


def test_key_is_used_up_by_a_late_disconnect(account: Account, upstream: LoopbackUpstream) -> None:
    """After a disconnect mid-stream, which is charged, the same key is not served again."""
    upstream.script(Sse([ROLE, said("first word"), Pause()]))
    with account.api.connect() as connection:
        connection.sendall(chat_bytes(account.api, "left late"))
        read_until(connection, b"first word")
    account.wait_until_ended()
    ask(account.api, "left late").error(409)
    assert account.charge()["amount_nano"] == -forte_nano(PROMPT_TOKENS, 2)
