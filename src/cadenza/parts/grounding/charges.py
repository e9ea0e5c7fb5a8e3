"""Charges the web searches of grounding, each as a charge of its own beside that of the chat.

Each is held and settled by the ledger like a chat: it counts for the cap of the key and is charged exactly once. The
engine is asked after the hold, so a client that disconnects meanwhile pays too. A failure costs nothing.
With an idempotency key, each is charged once for all requests with that key: several may search before one of them
holds credit for the chat and the others are refused.
"""

import contextlib
import hmac
import time
from collections.abc import AsyncIterator

from cadenza import clock
from cadenza.core.chat import new_completion_id
from cadenza.core.money import Price
from cadenza.core.rates import Rate
from cadenza.core.records import DISCONNECTED_STATUS, SEARCH, Outcome, Principal, Usage
from cadenza.fleet.shared import Rates
from cadenza.gateway.grounding import SearchTerms
from cadenza.ledger.rules import HeldCredit, Hold, Repeated
from cadenza.ledger.writer import LedgerWriter
from cadenza.parts.grounding.search.records import EngineFailed

DAY_S = 24 * 60 * 60
ONE_SEARCH = Usage(1, 0)  # a search is charged as one token at the price of a search
FAILED_STATUS = 502


class NotAffordable(Exception):
    """The credit of the account, or the cap of its key, is too low."""


class AlreadyCharged(Exception):
    """Another request with the same idempotency key was charged for it, or is about to be."""


class Charges:
    """The charges beside one chat request, and their sum. `request_id` is that of the chat.

    The same search is charged once under the same `secret`. It keys the digest of a query, so it must not be stored.
    """

    def __init__(
        self, ledger: LedgerWriter, principal: Principal, request_id: str, secret: bytes | None = None
    ) -> None:
        self._ledger = ledger
        self._principal = principal
        self.request_id = request_id
        self.key_id = principal.key_id
        self._secret = secret
        self.charged_nano = 0

    @contextlib.asynccontextmanager
    async def charge(self, price: Price, query: str, engine: str) -> AsyncIterator[None]:
        """Charge the search in the block, unless it fails; NotAffordable or AlreadyCharged before it begins."""
        now_ms, started_s = clock.now_ms(), time.perf_counter()
        hold = self._hold(price, query, now_ms)
        answer = await self._ledger.hold(hold)
        if isinstance(answer, Repeated):
            raise AlreadyCharged
        if not isinstance(answer, HeldCredit):
            raise NotAffordable
        status, is_charged = 200, True
        try:
            yield
        except (EngineFailed, TimeoutError):
            status, is_charged = FAILED_STATUS, False
            raise
        except BaseException:  # the client disconnected
            status = DISCONNECTED_STATUS
            raise
        finally:
            self.charged_nano += price.charge(ONE_SEARCH) if is_charged else 0
            outcome = Outcome(
                request_id=hold.request_id,
                endpoint=SEARCH,
                status=status,
                duration_ms=round((time.perf_counter() - started_s) * 1000),
                ended_at=clock.now_ms(),
                key_id=hold.key_id,
                account_id=hold.account_id,
                completion_id=hold.completion_id,
                class_id=SEARCH,
                provider=engine,
                usage=ONE_SEARCH if is_charged else None,
            )
            self._ledger.end(outcome)

    def _hold(self, price: Price, query: str, now_ms: int) -> Hold:
        principal, digest = self._principal, None
        if self._secret:
            digest = hmac.digest(self._secret, f"{SEARCH}\0{query}".encode(errors="replace"), "sha256")
        return Hold(
            completion_id=new_completion_id(now_ms),
            request_id=self.request_id,
            account_id=principal.account_id,
            key_id=principal.key_id,
            class_id=SEARCH,
            prompt_tokens=ONE_SEARCH.prompt_tokens,
            allowance_tokens=ONE_SEARCH.completion_tokens,
            price=price,
            stream=False,
            started_at=now_ms,
            idempotency_digest=digest,
            is_capped=principal.is_capped,
        )


@contextlib.asynccontextmanager
async def charge_search(
    charges: Charges, rates: Rates, account_id: str, terms: SearchTerms, query: str
) -> AsyncIterator[None]:
    """Count and charge a search. EngineFailed if it must not be made."""
    name = f"searches:{terms.per_day}:{account_id}"  # a changed limit starts a new count
    ticket = await rates.take(name, Rate(terms.per_day / DAY_S, terms.per_day))
    if not ticket.is_granted:
        raise EngineFailed("per_day")
    if not terms.price_nano:
        yield
        return
    async with contextlib.AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(charges.charge(Price(terms.price_nano, 0), query, terms.engine))
        except NotAffordable:
            raise EngineFailed("credit") from None
        except AlreadyCharged:
            pass
        yield
