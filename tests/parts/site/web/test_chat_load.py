"""What the chat costs others: hostile replies do not hold up the API, and a service that ends lets a reply finish."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.conftest import StartService
from tests.loopback import ROLE, STOP, LoopbackUpstream, Pause, Sse, said, usage_chunk
from tests.parts.site.web.chat_client import ChatClient, html_of, text_of
from tests.processes import own_cpu_s, stopped
from tests.raw_client import RawClient, Reply, read_all, read_until
from tests.service import Service
from tests.service_config import ordinary_spec
from tests.visitor import Visitor, signed_in

RENDERER = "cadenza.parts.site.chat.markdown.child"
REQUESTS = 20
OWN_CPU_S = 1.0  # about 0.1 s on an idle machine
REPLIES = {
    "one paragraph of 100 kB": "word " * 20_000,
    "10,000 nested brackets": "![" * 5_000 + "\n\n" + "[" * 10_000,
    "many blocks": "- *a* `b`\n\n# c\n\n" * 1_000,
}


@pytest.mark.parametrize("name", REPLIES)
def test_a_hostile_reply_does_not_hold_up_the_api(
    service: Service, visitor: Visitor, upstream: LoopbackUpstream, name: str
) -> None:
    """While its rendering stands still other requests are answered, and the service itself works little for it."""
    text = REPLIES[name]
    pieces = [text[start : start + 500] for start in range(0, len(text), 500)]
    api, chat = RawClient(service.port, service.key), ChatClient(visitor)
    assert chat.send().is_done
    upstream.always(Sse([ROLE, *map(said, pieces), STOP, usage_chunk()]))
    [renderer] = service.process.children(RENDERER)
    before_s = own_cpu_s(service.pid)
    with ThreadPoolExecutor(1) as thread:
        with stopped([renderer]):
            chatting = thread.submit(chat.send)
            upstream.wait_for_request(2)
            assert {api.get("/v1/models").status for _ in range(REQUESTS)} == {200}
        reply = chatting.result()
    assert own_cpu_s(service.pid) - before_s < OWN_CPU_S
    assert reply.is_done
    assert text_of(reply) == text
    assert len(html_of(reply)) > len(text)


def test_an_account_without_credit_costs_the_renderer_nothing(service: Service, visitor: Visitor) -> None:
    """Its texts are 402, and all of them together take the child less CPU time than one of an account that can pay."""
    poor = signed_in(service, service.create_account(0))
    order = {"texts": [REPLIES["many blocks"]]}
    assert visitor.api("POST", "/render", {"texts": ["a"]}).status == 200
    [renderer] = service.process.children(RENDERER)

    def cpu_s_of(browser: Visitor, count: int, status: int) -> float:
        before_s = own_cpu_s(renderer)
        assert [browser.api("POST", "/render", order).status for _ in range(count)] == [status] * count
        return own_cpu_s(renderer) - before_s

    paid_s = cpu_s_of(visitor, 1, 200)
    assert cpu_s_of(poor, 10, 402) < paid_s


def test_a_service_that_ends_lets_a_reply_finish(start_service: StartService, upstream: LoopbackUpstream) -> None:
    """A running chat is completed and charged before the service ends."""
    service = start_service(ordinary_spec(upstream.base_url))
    visitor = signed_in(service)
    chat, pause = ChatClient(visitor), Pause()
    upstream.script(Sse([ROLE, said("first\n\n"), pause, said("last"), STOP, usage_chunk()]))
    with chat.open() as connection:
        begun = read_until(connection, b"<p>first</p>")
        service.process.process.terminate()
        pause.release()
        assert Reply(begun + read_all(connection)).is_done
    service.stop()
    service.ledger.check_rules()
