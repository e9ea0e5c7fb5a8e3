"""Requests that hold credit on a real ledger."""

import asyncio
import threading
from typing import NamedTuple

import pytest

from cadenza.core.records import ReplyResult, Usage
from cadenza.core.tokens import Tokenizer
from cadenza.gateway.billing import BREAK_OFF_S, Credit
from cadenza.gateway.request import RequestRecord
from cadenza.ledger.rules import AMPLE_TIMES, Hold
from cadenza.ledger.writer import LedgerWriter
from cadenza.routing.prompt import PromptSize
from cadenza.store.schema import usage
from tests.unit.gateway.client import WAIT_S, Client
from tests.unit.gateway.funded_store import FORTE, PRINCIPAL, FundedStore, make_hold
from tests.unit.gateway.gateways import ROUTE
from tests.unit.gateway.prompts import TOKENIZER, prompt_of

SMALL_NANO = 10_000_000
PROMPT_TOKENS, PROMPT_BYTES = 100, 400
ROUTE_TOKENS = 4_096
WINDOW_TOKENS = 1_000_000
GOOD = ReplyResult(Usage(90, 40, 10), "stop")
GOOD_NANO = 90 * 1_070 + 40 * 3_450
AMPLE_NANO = AMPLE_TIMES * FORTE.quote(PROMPT_BYTES, 1_000)
UNCOUNTED = make_hold(prompt_tokens=PROMPT_BYTES, is_counted=False)


class SlowTokenizer(Tokenizer):
    """Loads when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.is_loading = asyncio.Event()
        self.may_load = threading.Event()
        self._loop = asyncio.get_running_loop()

    def load(self) -> None:
        self._loop.call_soon_threadsafe(self.is_loading.set)
        assert self.may_load.wait(WAIT_S)
        super().load()


class Billing(NamedTuple):
    """A funded store, the writer of its ledger, and requests that hold credit."""

    funded: FundedStore
    ledger: LedgerWriter

    def hold(
        self,
        wanted: Hold,
        *,
        prompt: PromptSize | None = None,
        tokenizer: Tokenizer = TOKENIZER,
        wait_s: float = BREAK_OFF_S,
    ) -> Credit:
        """Hold credit for a prompt of 100 tokens in 400 bytes, or for another one."""
        record = RequestRecord(Client().open([(b"x-request-id", wanted.request_id.encode())]))
        record.endpoint = "chat"
        record.principal = PRINCIPAL
        record.routed(ROUTE)
        prompt = prompt or prompt_of(PROMPT_TOKENS, PROMPT_BYTES, tokenizer)
        return Credit(self.ledger, record, wanted, prompt, WINDOW_TOKENS, wait_s)

    async def settle(self, wanted: Hold, result: ReplyResult) -> None:
        """A request that ends with this result."""
        async with self.hold(wanted) as credit:
            await credit.settle(result)

    async def break_off(self, error: BaseException, delivered: str = "", tokenizer: Tokenizer = TOKENIZER) -> None:
        """A request that delivers this text and then meets the error."""

        async def serve() -> None:
            async with self.hold(make_hold(), tokenizer=tokenizer) as credit:
                if delivered:
                    credit.meter.deliver(delivered)
                raise error

        with pytest.raises(type(error)):
            await serve()
        await self.ledger.drained()

    async def statuses_and_costs(self) -> list[tuple[int, int]]:
        return [(row["status"], row["cost_nano"]) for row in await self.funded.rows(usage)]
