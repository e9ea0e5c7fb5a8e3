"""6. One key that uploads large bodies and then trickles cannot keep other accounts from uploading theirs."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator

import msgspec
import pytest

from tests.loopback import LoopbackUpstream
from tests.raw_client import RawClient, Reply
from tests.service import Service
from tests.service_config import classes_spec

MIB = 2**20
ANNOUNCED_BYTES = 32 * MIB
PARTS = [b" " * MIB] * 31 + [b" " * (MIB - 4096)]  # all but 4 KiB of it
TRICKLE_S = 0.5
ENDED_S = 200.0  # far less than the 17 minutes that 32 MiB take at the minimum rate, far more than a trickler is given
HONEST = (1, 200, 1024, 20 * 1024)  # the sizes of the other account's bodies in KiB


class Hoard(msgspec.Struct):
    """What the attacker was answered, and the other account meanwhile, by the size of its body in KiB."""

    attacker: list[int]
    other: dict[int, int]


def padded_chat(size_bytes: int) -> bytes:
    """A chat whose body has this size, most of it in a field that is not forwarded."""
    start, end = b'{"messages":[{"role":"user","content":"hi"}],"user":"', b'"}'
    return start + b"x" * (size_bytes - len(start) - len(end)) + end


class Trickler:
    """Announces a large body, sends most of it at once, and then a little now and then until it is answered."""

    def __init__(self, api: RawClient) -> None:
        self._api = api
        self.status = 0
        self.holds = asyncio.Event()  # it has sent what it sends at once, or was answered before

    async def run(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._api.port)
        sending = asyncio.create_task(self._send(writer))
        try:
            with contextlib.suppress(ConnectionError, EOFError):
                async with asyncio.timeout(ENDED_S):
                    self.status = Reply(await reader.readuntil(b"\r\n\r\n")).status
        finally:
            self.holds.set()
            sending.cancel()
            writer.transport.abort()

    async def _send(self, writer: asyncio.StreamWriter) -> None:
        writer.write(self._api.head("POST", "/v1/chat/completions", f"content-length: {ANNOUNCED_BYTES}"))
        with contextlib.suppress(ConnectionError):
            for part in PARTS:
                writer.write(part)
                await writer.drain()
            self.holds.set()
            while True:
                await asyncio.sleep(TRICKLE_S)
                writer.write(b" ")
                await writer.drain()


async def hoard(attacker: RawClient, other: RawClient, connections: int) -> Hoard:
    tricklers = [Trickler(attacker) for _ in range(connections)]
    running = [asyncio.create_task(trickler.run()) for trickler in tricklers]
    await asyncio.gather(*(trickler.holds.wait() for trickler in tricklers))
    answers = {size: (await asyncio.to_thread(other.post, padded_chat(size * 1024))).status for size in HONEST}
    await asyncio.gather(*running)
    return Hoard([trickler.status for trickler in tricklers], answers)


@pytest.fixture(scope="module")
def service(shared_upstream: LoopbackUpstream) -> Iterator[Service]:
    shared_upstream.reset()
    with Service(classes_spec(shared_upstream.base_url)) as running:
        yield running


@pytest.mark.slow(reason="waits until slow uploads are ended")
@pytest.mark.parametrize("connections", [16, 64])
def test_a_hoard_of_one_key_leaves_room_for_others(service: Service, connections: int) -> None:
    """The other account's small and large bodies are served meanwhile, and every trickling upload is ended early."""
    other = RawClient(service.port, service.create_key(service.create_account(10**9)))
    seen = asyncio.run(hoard(RawClient(service.port, service.key), other, connections))
    assert seen.other == dict.fromkeys(HONEST, 200), Counter(seen.attacker)
    assert set(seen.attacker) <= {0, 408, 429}, "0 is a connection that was reset while it sent"
    assert 408 in seen.attacker


def test_a_large_body_without_credit_is_refused_before_it_is_read(service: Service) -> None:
    """Without credit, the head of a large body is a 402; a small body is checked in the usual order."""
    api = RawClient(service.port, service.create_key(service.create_account(0)))
    announced = api.head("POST", "/v1/chat/completions", f"content-length: {ANNOUNCED_BYTES}")
    Reply(api.send_raw(announced)).error(402, "insufficient_quota")
    api.post(b"not JSON").error(400)
    api.post(padded_chat(60 * 1024)).error(402, "insufficient_quota")
    assert RawClient(service.port, service.key).post(padded_chat(ANNOUNCED_BYTES)).status == 200
