"""A process with a ledger of its own that takes and ends holds as fast as the store takes them.

    python -m tests.fleet.movers URL NAME COUNT ACCOUNT:KEY...

Every other hold has an idempotency key, so that the store takes it; the others are taken in memory. It prints how many
holds the store refused because an account was locked for too long, and the sum of all charges in nano-dollars.
"""

import asyncio
import hashlib
import io
import itertools
import random
import sys

from cadenza.core.money import Price
from cadenza.core.records import Outcome, Usage
from cadenza.fleet.presence import Presence
from cadenza.ledger.rules import Ended, Held, Hold
from cadenza.ledger.writer import LedgerWriter
from cadenza.observe import FaultPoint, Observer, make_log
from cadenza.store.address import open_store
from cadenza.store.store import StoreUnavailable
from tests.service import now_ms

AT_ONCE = 32
PRICE = Price(input_nano=1070, output_nano=3450, cached_input_nano=None)
USAGE = Usage(20, 10)


class Mover:
    """Requests on random accounts: each is held, and then charged."""

    def __init__(self, writer: LedgerWriter, name: str, accounts: list[tuple[str, str]]) -> None:
        self.busy = 0
        self.charged_nano = 0
        self._writer = writer
        self._name = name
        self._accounts = accounts
        self._dice = random.Random(name)

    async def work(self, numbers: "itertools.count[int]", count: int) -> None:
        while (number := next(numbers)) < count:
            hold = self._make_hold(number)
            try:
                held = await self._writer.hold(hold)
            except StoreUnavailable:
                self.busy += 1
                continue
            assert isinstance(held, Held), held
            ended = await self._writer.end(make_outcome(hold))
            assert isinstance(ended, Ended), ended
            self.charged_nano += ended.charged_nano

    def _make_hold(self, number: int) -> Hold:
        account_id, key_id = self._dice.choice(self._accounts)
        completion_id = f"chatcmpl-{self._name}-{number}"
        return Hold(
            completion_id=completion_id,
            account_id=account_id,
            key_id=key_id,
            class_id="forte",
            prompt_tokens=20,
            allowance_tokens=50,
            price=PRICE,
            stream=False,
            started_at=now_ms(),
            request_id=completion_id,
            idempotency_digest=hashlib.sha256(completion_id.encode()).digest() if number % 2 else None,
        )


def make_outcome(hold: Hold) -> Outcome:
    return Outcome(
        request_id=hold.request_id,
        completion_id=hold.completion_id,
        account_id=hold.account_id,
        key_id=hold.key_id,
        class_id=hold.class_id,
        endpoint="chat",
        usage=USAGE,
        provider="loopback",
        model="loopback-forte",
        status=200,
        first_byte_ms=1,
        duration_ms=1,
        ended_at=now_ms(),
    )


async def main(url: str, name: str, count: str, *accounts: str) -> None:
    store = open_store(url)
    presence = Presence(store)
    writer = LedgerWriter(store, Observer(make_log(io.StringIO()), FaultPoint()), presence)
    pairs = [(account_id, key_id) for account_id, _, key_id in (one.partition(":") for one in accounts)]
    mover, numbers = Mover(writer, name, pairs), itertools.count()
    try:
        await presence.start()
        await writer.start()
        await asyncio.gather(*(mover.work(numbers, int(count)) for _ in range(AT_ONCE)))
        await writer.stop()
        await presence.stop()
    finally:
        await store.close()
    sys.stdout.write(f"{mover.busy} {mover.charged_nano}\n")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
