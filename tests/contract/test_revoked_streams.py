"""Requests that run while their key is revoked: they end soon, what was delivered is charged, and others go on."""

import pytest

from tests.account import FORTE_INPUT_NANO, FORTE_OUTPUT_NANO, PROMPT_TOKENS
from tests.loopback import ROLE, STOP, LoopbackUpstream, Pause, Raw, Sse, said
from tests.raw_client import RawClient, Reply, read_all, read_until
from tests.service import CREDIT_NANO, EMAIL, Service
from tests.tokens import count_tokens

STATUS = "SELECT status FROM usage WHERE completion_id = ?"


def revoke(service: Service, key: str) -> None:
    assert service.cli("key", "revoke", key).returncode == 0


def test_a_stream_ends_when_its_key_is_revoked(service: Service, upstream: LoopbackUpstream) -> None:
    """It gets an error event and no [DONE], its upstream is closed, and the delivered words are charged."""
    email, pause = service.create_account(CREDIT_NANO), Pause()
    key = service.create_key(email)
    upstream.script(Sse([ROLE, said("first words"), pause]))
    with RawClient(service.port, key).open_chat(stream=True) as connection:
        begun = read_until(connection, b"first words")
        revoke(service, key)
        reply = Reply(begun + read_all(connection))
    upstream.wait_for_disconnect()
    assert b"[DONE]" not in reply.raw
    assert reply.events[-1]["error"]["type"] == "api_error"
    assert "revoked" in reply.events[-1]["error"]["message"]
    [charge] = service.ledger.charges_of(email)
    cost_nano = PROMPT_TOKENS * FORTE_INPUT_NANO + count_tokens("first words") * FORTE_OUTPUT_NANO
    [usage] = service.ledger.query(STATUS, charge["completion_id"])
    assert (charge["amount_nano"], usage["status"]) == (-cost_nano, 401)


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_without_an_answer_gets_401(service: Service, upstream: LoopbackUpstream, stream: bool) -> None:
    """Before the first byte the reply is an ordinary error. The upstream was at work, so the prompt is charged."""
    email, pause = service.create_account(CREDIT_NANO), Pause()
    key = service.create_key(email)
    upstream.script(Raw([pause]))
    with RawClient(service.port, key).open_chat(stream=stream) as connection:
        pause.wait_until_reached()
        revoke(service, key)
        Reply(read_all(connection)).error(401, "authentication_error")
    upstream.wait_for_disconnect()
    [charge] = service.ledger.charges_of(email)
    assert charge["amount_nano"] == -PROMPT_TOKENS * FORTE_INPUT_NANO


def test_streams_of_other_keys_go_on(service: Service, upstream: LoopbackUpstream) -> None:
    """A revocation ends the requests of its own key only."""
    staying, leaving = Pause(), Pause()
    upstream.script(Sse([ROLE, said("stay"), staying, said("ing"), STOP]), Sse([ROLE, said("leave"), leaving]))
    key = service.create_key()
    with RawClient(service.port, service.key).open_chat(stream=True) as connection:
        read_until(connection, b"stay")
        with RawClient(service.port, key).open_chat(stream=True) as other:
            read_until(other, b"leave")
            revoke(service, key)
            assert b"revoked" in read_all(other)
        staying.release()
        assert b"ing" in read_until(connection, b"[DONE]")


def test_a_change_of_something_else_ends_nothing(service: Service, upstream: LoopbackUpstream) -> None:
    """Credit is given and a key is created while a stream runs: it runs to its end."""
    pause = Pause()
    upstream.script(Sse([ROLE, said("first"), pause, said(" second"), STOP]))
    with RawClient(service.port, service.key).open_chat(stream=True) as connection:
        read_until(connection, b"first")
        service.give_credit(EMAIL, 10**9)
        assert RawClient(service.port, service.create_key()).get("/v1/models").status == 200
        pause.release()
        assert b" second" in read_until(connection, b"[DONE]")
