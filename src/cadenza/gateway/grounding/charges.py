"""Charges the web searches and model decisions of grounding, each as a charge of its own beside that of the chat.

Each is held and settled by the ledger like a chat: it counts for the cap of the key and is charged exactly once. The
engine or the model is asked after the hold, so a client that leaves meanwhile pays too. What fails costs nothing.
"""

import contextlib
import time
from collections.abc import AsyncIterator

import msgspec

from cadenza.core.chat import new_completion_id
from cadenza.core.errors import CadenzaError
from cadenza.core.ledger import Held, Hold
from cadenza.core.money import Price
from cadenza.core.rates import Rate
from cadenza.core.records import DISCONNECTED_STATUS, SEARCH, Outcome, Principal, Usage
from cadenza.gateway.grounding.search.records import EngineFailed
from cadenza.store.shared.state import Rates
from cadenza.store.writer import LedgerWriter

DAY_S = 24 * 60 * 60
ONE_SEARCH = Usage(1, 0)  # a search is charged as one token at the price of a search
FAILED_STATUS = 502


class NotAffordable(Exception):
    """The account or the cap of its key cannot pay for it."""


class Extra(msgspec.Struct):
    """What is charged beside a chat. The charged block sets the provider, the model and the usage."""

    usage: Usage
    provider: str = ""
    model: str = ""


class Charges:
    """The charges beside one chat request, and their sum. `request_id` is that of the chat."""

    def __init__(self, ledger: LedgerWriter, principal: Principal, request_id: str) -> None:
        self._ledger = ledger
        self._principal = principal
        self._request_id = request_id
        self.charged_nano = 0

    @contextlib.asynccontextmanager
    async def charge(self, class_id: str, price: Price, at_most: Usage) -> AsyncIterator[Extra]:
        """Charge the block, unless it fails; NotAffordable before it begins."""
        now_ms, started_s = time.time_ns() // 1_000_000, time.perf_counter()
        hold = self._hold(class_id, price, at_most, now_ms)
        if not isinstance(await self._ledger.hold(hold), Held):
            raise NotAffordable
        extra, status, is_charged = Extra(at_most), 200, True
        try:
            yield extra
        except (EngineFailed, CadenzaError, TimeoutError):
            status, is_charged = FAILED_STATUS, False
            raise
        except BaseException:  # the client left, or the time of the whole search is over
            status = DISCONNECTED_STATUS
            raise
        finally:
            self.charged_nano += price.charge(extra.usage) if is_charged else 0
            outcome = Outcome(
                request_id=hold.request_id,
                endpoint=SEARCH,
                status=status,
                duration_ms=round((time.perf_counter() - started_s) * 1000),
                ended_at=time.time_ns() // 1_000_000,
                key_id=hold.key_id,
                account_id=hold.account_id,
                completion_id=hold.completion_id,
                class_id=class_id,
                provider=extra.provider,
                model=extra.model,
                usage=extra.usage if is_charged else None,
            )
            self._ledger.end(outcome)

    def _hold(self, class_id: str, price: Price, at_most: Usage, now_ms: int) -> Hold:
        principal = self._principal
        return Hold(
            completion_id=new_completion_id(now_ms),
            request_id=self._request_id,
            account_id=principal.account_id,
            key_id=principal.key_id,
            class_id=class_id,
            prompt_tokens=at_most.prompt_tokens,
            allowance_tokens=at_most.completion_tokens,
            price=price,
            stream=False,
            started_at=now_ms,
            is_capped=principal.is_capped,
        )


class SearchTerms(msgspec.Struct, frozen=True):
    """The engine and price of a search, and the quota of an account: `per_day` in a burst and in each day."""

    engine: str
    price_nano: int = 0
    per_day: int = 1000


class SearchCharge:
    """Counts and charges the searches of one request. EngineFailed says why a search must not be made."""

    def __init__(self, charges: Charges, rates: Rates, account_id: str, terms: SearchTerms) -> None:
        self._charges = charges
        self._rates = rates
        self._account_id = account_id
        self._terms = terms

    @contextlib.asynccontextmanager
    async def __call__(self) -> AsyncIterator[None]:
        terms = self._terms
        name = f"searches:{terms.per_day}:{self._account_id}"  # another limit counts anew: both spans are a day
        ticket = await self._rates.take(name, Rate(terms.per_day / DAY_S, terms.per_day))
        if not ticket.is_granted:
            raise EngineFailed("per_day")
        if not terms.price_nano:
            yield
            return
        try:
            async with self._charges.charge(SEARCH, Price(terms.price_nano, 0), ONE_SEARCH) as extra:
                extra.provider = terms.engine
                yield
        except NotAffordable:
            raise EngineFailed("credit") from None
