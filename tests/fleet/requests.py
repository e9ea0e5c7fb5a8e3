"""Requests to a fleet: single ones, many at once, and a load that goes on until a test ends it.

Every request and its reply are kept, so that `check_charges` can compare each with the ledger.
"""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Iterable, Sequence

import msgspec

from tests.fleet.fleet import Fleet
from tests.ledger_reader import usage_cost_nano
from tests.loopback import usage_of
from tests.raw_client import TIMEOUT_S, ChatRequest, Leave, Reply, send
from tests.service import wait_until

WORDS = ["Seven", " four", " five", " nine"]  # a token and five characters each: a mark by length is exact
USAGE = usage_of(23, 9, 4)
COST_NANO = usage_cost_nano("forte", USAGE)
CREDIT_NANO = 10**12
PAUSE_S = 0.1  # of a client after each reply: without it the load would take all cores
REFUSED_PAUSE_S = 0.1
RECOVERED_S = 60.0
LATE_STORE = (b"cannot reach its store", b"did not confirm the charge")


class FleetRequest(ChatRequest, frozen=True):
    """A chat request without an idempotency key, so that its credit is held in memory alone."""

    is_once = False


class Sent(msgspec.Struct, frozen=True):
    """A request that was sent, its reply, and when it was sent and answered on the monotonic clock."""

    request: ChatRequest
    reply: Reply
    sent_s: float
    answered_s: float

    @property
    def took_s(self) -> float:
        return self.answered_s - self.sent_s


def disturbed(all_sent: Iterable[Sent]) -> list[bytes]:
    """The replies that are not whole, but for those of a gateway that Postgres did not answer in time.

    On a busy machine Postgres may be late, and the gateway then refuses the request, or withholds its end.
    """
    broken = [sent.reply.raw for sent in all_sent if not sent.reply.is_done]
    return [raw for raw in broken if not any(words in raw for words in LATE_STORE)]


class Clients:
    """The clients of one account, with one key: what they send is kept."""

    def __init__(self, fleet: Fleet, credit_nano: int = CREDIT_NANO, **limits: float) -> None:
        self.fleet = fleet
        self.credit_nano = credit_nano
        self.email = fleet.ledger.create_account(credit_nano)
        self.key = fleet.ledger.create_key(self.email, **limits)
        self.sent = list[Sent]()

    def new_request(self, *, stream: bool = False, max_tokens: int | None = None, once: bool = False) -> ChatRequest:
        """`once` sends an idempotency key too."""
        kind = ChatRequest if once else FleetRequest
        return kind(self.fleet.new_number(), stream=stream, max_tokens=max_tokens)

    async def send(
        self, request: ChatRequest, port: int | None = None, leave: Leave | None = None, within_s: float = TIMEOUT_S
    ) -> Reply:
        """Through nginx, or straight to one gateway's port."""
        sent_s = time.monotonic()
        reply = await send(port or self.fleet.port, self.key, request, leave, within_s)
        self.sent.append(Sent(request, reply, sent_s, time.monotonic()))
        return reply

    async def send_patiently(self, request: ChatRequest, port: int | None = None) -> Reply:
        """Send it again, a little later, as long as it is refused with 429, as on a busy machine it may be."""
        reply = await self.send(request, port)
        while reply.status == 429:
            await asyncio.sleep(REFUSED_PAUSE_S)
            reply = await self.send(request, port)
        return reply

    async def send_all(self, requests: Iterable[ChatRequest], ports: Sequence[int] = ()) -> list[Reply]:
        """All at once, over the ports in turn."""
        turns = itertools.cycle(ports or [self.fleet.port])
        return await asyncio.gather(*(self.send(request, port) for request, port in zip(requests, turns, strict=False)))

    @contextlib.asynccontextmanager
    async def load(self, at_once: int = 8, ports: Sequence[int] = ()) -> AsyncIterator[None]:
        """Clients that send one request after the other during the block, with short pauses; half are streams."""
        is_over = asyncio.Event()

        async def client(port: int | None) -> None:
            for number in itertools.count():
                if is_over.is_set():
                    return
                reply: Reply | None = None
                with contextlib.suppress(OSError):  # nothing listens
                    reply = await self.send(self.new_request(stream=number % 2 == 0, once=number % 4 == 1), port)
                await asyncio.sleep(PAUSE_S if reply and reply.status == 200 else REFUSED_PAUSE_S)

        turns = itertools.cycle(ports or [None])
        async with asyncio.TaskGroup() as running:
            for port in itertools.islice(turns, at_once):
                running.create_task(client(port))
            try:
                yield
            finally:
                is_over.set()

    async def wait_for_replies(self, count: int) -> None:
        """Wait until so many requests were served, while others send them."""
        await asyncio.to_thread(
            wait_until, lambda: sum(sent.reply.is_done for sent in self.sent) > count, f"{count} replies"
        )

    async def check_recovery(self) -> None:
        """Every gateway serves again by itself."""
        for gateway in self.fleet.gateways:
            began_s = time.monotonic()
            while not (await self.send(self.new_request(), gateway.port)).is_done:
                assert time.monotonic() - began_s < RECOVERED_S, "a gateway does not recover"
                await asyncio.sleep(0.1)

    def check_charges(self) -> None:
        check_charges([self])


def check_charges(all_clients: Sequence[Clients]) -> None:
    """Every whole reply was charged once and in full, no request twice, and the balances lost just that."""
    ledger = all_clients[0].fleet.ledger
    rows, balances_nano, wrong = ledger.rows(), ledger.balances_nano(), list[str]()
    for clients in all_clients:
        spent_nano = 0
        for sent in clients.sent:
            found = rows[sent.request.request_id]
            charged = [row.cost_nano for row in found if row.cost_nano]
            spent_nano += sum(charged)
            is_right = charged == [COST_NANO] if sent.reply.is_done else len(charged) <= 1
            if not is_right:
                wrong.append(f"{sent.request.request_id} done={sent.reply.is_done} {found} {sent.reply.raw[-300:]!r}")
        assert clients.credit_nano - balances_nano[clients.email] == spent_nano
    assert wrong == [], f"{len(wrong)} wrong charges"
