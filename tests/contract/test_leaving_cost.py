"""What a client pays that leaves while an upstream has its request: the prompt once, if the upstream has not failed."""

from collections.abc import Iterator

import pytest

from tests.account import PROMPT_TOKENS, forte_nano, open_account
from tests.loopback import ROLE, LoopbackUpstream, Pause, Raw, Sse, Status, http_head
from tests.service import Service, wait_until
from tests.service_config import RouteSpec, ServiceSpec
from tests.unit.http.peer import full_listener

PROVIDER = "SELECT provider, status FROM usage WHERE completion_id = ?"
PROMPT_NANO = forte_nano(PROMPT_TOKENS, 0)


@pytest.fixture(scope="module")
def first() -> Iterator[LoopbackUpstream]:
    with LoopbackUpstream() as upstream:
        yield upstream


@pytest.fixture(scope="module")
def two_routes(first: LoopbackUpstream, shared_upstream: LoopbackUpstream) -> Iterator[Service]:
    """`first` is asked, and if it fails, the shared upstream."""
    routes = {"forte": [RouteSpec("first"), RouteSpec("second", order=1)]}
    with Service(ServiceSpec({"first": first.base_url, "second": shared_upstream.base_url}, routes)) as service:
        yield service


@pytest.mark.parametrize("stream", [False, True])
def test_leaving_at_the_second_route_costs_the_prompt_once(
    two_routes: Service, first: LoopbackUpstream, upstream: LoopbackUpstream, stream: bool
) -> None:
    """The first route failed, which is free. The second has the request when the client leaves: it is the one named."""
    first.always(Status(500))
    pause = Pause()
    upstream.script(Raw([pause]))
    with open_account(two_routes) as account:
        with account.api.open_chat(stream=stream):
            pause.wait_until_reached()
        account.wait_until_ended()
        charge = account.charge()
    [row] = two_routes.ledger.query(PROVIDER, charge["completion_id"])
    assert charge["amount_nano"] == -PROMPT_NANO
    assert (row["provider"], row["status"]) == ("second", 499)


@pytest.mark.parametrize("stream", [False, True])
def test_leaving_before_a_word_was_delivered_costs_the_prompt(
    service: Service, upstream: LoopbackUpstream, protocol: str, stream: bool
) -> None:
    """The stream has begun with a role alone, or the upstream has sent half of a plain answer."""
    pause = Pause()
    head = http_head(200, {"content-type": "application/json", "content-length": "999"})
    upstream.script(Sse([ROLE, pause]) if stream else Raw([head, b'{"choices": [', pause]))
    with open_account(service) as account:
        with account.api.open_chat(protocol, stream=stream):
            pause.wait_until_reached()
        account.wait_until_ended()
        assert account.charge()["amount_nano"] == -PROMPT_NANO


def test_a_long_prompt_is_paid_for(service: Service, upstream: LoopbackUpstream) -> None:
    """It is counted by the child process that parsed it, after the client left."""
    pause, words = Pause(), 100_000
    upstream.script(Raw([pause]))
    with open_account(service, 10**12) as account:
        with account.api.open_chat(messages=[{"role": "user", "content": "word " * words}]):
            pause.wait_until_reached()
        account.wait_until_ended()
        assert words <= account.charge()["prompt_tokens"] <= words + PROMPT_TOKENS


def test_leaving_before_an_upstream_is_reached_is_free(upstream: LoopbackUpstream) -> None:
    """A client that leaves while the connection is being made has not been served by anybody."""
    with full_listener() as port:
        spec = ServiceSpec({"deaf": f"http://127.0.0.1:{port}/v1"}, {"forte": [RouteSpec("deaf")]})
        with Service(spec) as service, open_account(service) as account:
            with account.api.open_chat():
                wait_until(lambda: account.held_nano > 0, "the hold")
            account.wait_until_ended()
            assert (account.charges, account.spent_nano) == ([], 0)
