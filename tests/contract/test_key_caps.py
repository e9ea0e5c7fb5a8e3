"""The spend cap of a key decides: a request is served, its limit is fitted to the cap, or it is a 402 that says so."""

import pytest

from cadenza.core.money import format_dollars
from cadenza.core.records import Cap
from tests.account import PROMPT_TOKENS, Account, forte_nano, run_command
from tests.loopback import Json, LoopbackUpstream, Pause, Raw, completion
from tests.raw_client import RawClient, Reply, read_all

LEAST_TOKENS = 16
FITTED = "x-cadenza-max-tokens"
SPENT = "SELECT c.spent_nano FROM caps c JOIN keys k ON k.id = c.key_id WHERE k.prefix = ?"


def paying_for(output_tokens: int) -> int:
    """What the prompt of `RawClient.chat` and so much output costs."""
    return forte_nano(PROMPT_TOKENS, output_tokens)


def capped(account: Account, cap: Cap) -> RawClient:
    return RawClient(account.service.port, account.service.create_key(account.email, cap=cap))


def set_cap(api: RawClient, account: Account, *words: str) -> None:
    run_command(account.service, "key", "change", api.key or "", "--cap", *words)


def spent_nano(api: RawClient, account: Account) -> int:
    return int(account.service.ledger.query(SPENT, (api.key or "")[:12])[0]["spent_nano"])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("period", "said"), [("total", "in total"), ("month", "a month")])
def test_a_spent_cap_is_402_and_says_which(
    account: Account, upstream: LoopbackUpstream, period: str, said: str, stream: bool
) -> None:
    """The message names the key's cap, its period, what is spent and what is needed; no upstream is asked."""
    limit_nano = paying_for(LEAST_TOKENS) - 1
    api = capped(account, Cap(limit_nano, "month" if period == "month" else "total"))
    reply = api.chat(stream=stream)
    message = reply.error(402, "insufficient_quota")
    assert f"This key has a spend cap of {format_dollars(limit_nano)} dollars {said}: 0.00 are spent" in message
    assert f"needs at least {format_dollars(paying_for(LEAST_TOKENS))} " in message
    assert reply.headers["x-should-retry"] == "false"
    assert upstream.requests == []
    assert account.charges == []


def test_a_key_is_served_up_to_its_cap(account: Account, upstream: LoopbackUpstream) -> None:
    """Requests are served until the cap is spent to the nano-dollar; other keys of the account are not touched."""
    usage = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": 100}
    upstream.always(Json(completion("hi", usage=usage)))
    api = capped(account, Cap(3 * paying_for(100)))
    assert [api.chat(max_tokens=100).status for _ in range(5)] == [200, 200, 200, 402, 402]
    assert spent_nano(api, account) == account.spent_nano == 3 * paying_for(100)
    assert account.api.chat(max_tokens=100).status == 200


def test_the_limit_is_fitted_to_the_cap(account: Account, upstream: LoopbackUpstream) -> None:
    """With and without `max_tokens`, the answer is no longer than the cap can pay."""
    for fields in ({"max_tokens": 1_000}, {}):
        reply = capped(account, Cap(paying_for(40))).chat(**fields)
        assert (reply.status, reply.headers[FITTED]) == (200, "40")
        assert upstream.wait_for_request().json["max_tokens"] == 40


def test_a_raised_cap_serves_the_very_next_request(account: Account, upstream: LoopbackUpstream) -> None:
    """And a cap that is set, lowered or removed counts on the very next request too."""
    api = RawClient(account.service.port, account.create_key())
    statuses = [api.chat().status]
    for words in (("0",), ("1.00",), ("0", "--cap-period", "month"), ("none",)):
        set_cap(api, account, *words)
        statuses.append(api.chat().status)
    assert statuses == [200, 402, 200, 402, 200]


def test_a_running_request_holds_a_part_of_the_cap(account: Account, upstream: LoopbackUpstream) -> None:
    """A second request is refused while the first may still spend the cap, and served once it has ended."""
    pause = Pause()
    api = capped(account, Cap(paying_for(100)))
    upstream.script(Raw([pause]))
    with api.open_chat(max_tokens=100) as connection:
        pause.wait_until_reached()
        message = api.chat(max_tokens=100).error(402, "insufficient_quota")
        assert f"{format_dollars(paying_for(100))} are held for running requests" in message
        connection.close()
        upstream.wait_for_disconnect()
    account.wait_until_ended()
    assert api.chat(max_tokens=100).status == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_suspended_account_is_refused_like_a_revoked_key(
    account: Account, upstream: LoopbackUpstream, stream: bool
) -> None:
    """Its running requests end, every request gets 401, and after it is resumed its keys work again."""
    pause, service = Pause(), account.service
    upstream.script(Raw([pause]))
    with account.api.open_chat(stream=stream) as connection:
        pause.wait_until_reached()
        service.suspend(account.email)
        Reply(read_all(connection)).error(401, "authentication_error")
    unknown = RawClient(service.port, "sk-cdz-nobody").get("/v1/models").error(401, "authentication_error")
    assert account.api.get("/v1/models").error(401, "authentication_error") == unknown
    assert account.api.chat().error(401, "authentication_error") == unknown
    service.suspend(account.email, is_suspended=False)
    assert account.api.chat().status == 200
