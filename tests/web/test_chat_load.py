"""What the chat costs others: hostile replies do not hold up the API, and a service that ends lets a reply finish."""

import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.conftest import StartService
from tests.loopback import ROLE, STOP, LoopbackUpstream, Pause, Sse, said, usage_chunk
from tests.raw_client import RawClient, Reply, read_all, read_until
from tests.service import Service
from tests.service_config import ordinary_spec
from tests.visitor import Visitor
from tests.web.chat_client import ChatClient, html_of, text_of

CHATS = 2
PAUSE_S = 0.01  # between two measurements
REPLIES = {
    "one paragraph of 100 kB": "word " * 20_000,
    "10,000 nested brackets": "![" * 5_000 + "\n\n" + "[" * 10_000,
    "many blocks": "- *a* `b`\n\n# c\n\n" * 1_000,
}


def latency_s(api: RawClient) -> float:
    time.sleep(PAUSE_S)
    begun_s = time.perf_counter()
    assert api.get("/v1/models").status == 200
    return time.perf_counter() - begun_s


@pytest.mark.parametrize("name", REPLIES)
def test_a_hostile_reply_does_not_hold_up_the_api(
    service: Service, visitor: Visitor, upstream: LoopbackUpstream, name: str
) -> None:
    """While such replies are rendered, other requests take a few times as long as alone, not as long as that."""
    text = REPLIES[name]
    pieces = [text[start : start + 500] for start in range(0, len(text), 500)]
    upstream.always(Sse([ROLE, *map(said, pieces), STOP, usage_chunk()]))
    api, chat = RawClient(service.port, service.key), ChatClient(visitor)
    assert chat.send().is_done
    alone_s = statistics.median(latency_s(api) for _ in range(40))
    with ThreadPoolExecutor(1) as thread:
        chatting = thread.submit(lambda: [chat.send() for _ in range(CHATS)])
        beside_s = [latency_s(api)]
        while not chatting.done():
            beside_s.append(latency_s(api))
        replies = chatting.result()
    assert all(reply.is_done and text_of(reply) == text for reply in replies)
    assert all(len(html_of(reply)) > len(text) for reply in replies)
    assert statistics.median(beside_s) < 10 * alone_s


def test_a_service_that_ends_lets_a_reply_finish(start_service: StartService, upstream: LoopbackUpstream) -> None:
    """A running chat is completed and charged before the service ends."""
    service = start_service(ordinary_spec(upstream.base_url))
    visitor = Visitor(service.port)
    visitor.sign_in()
    chat, pause = ChatClient(visitor), Pause()
    upstream.script(Sse([ROLE, said("first\n\n"), pause, said("last"), STOP, usage_chunk()]))
    with chat.open() as connection:
        begun = read_until(connection, b"<p>first</p>")
        service.process.process.terminate()
        pause.release()
        assert Reply(begun + read_all(connection)).is_done
    service.stop()
    service.ledger.check_rules()
