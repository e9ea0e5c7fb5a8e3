"""Charges the web searches of grounding, each as a charge of its own beside that of the chat.

Each is held and settled by the ledger like a chat: it counts for the cap of the key and is charged exactly once. The
engine is asked after the hold, so a client that disconnects meanwhile pays too. A failure costs nothing.
With an idempotency key, each is charged once for all requests with that key: several may search before one of them
holds credit for the chat and the others are refused.
"""

import contextlib
import hmac
import time
from collections.abc import AsyncIterator, Iterator

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


class Charges:
    """The charges beside one chat request, and their sum. `request_id` is that of the chat.

    The same search is charged once under the same `secret`. It keys the digest of a query, so it must not be stored.
    """

    def __init__(
        self, ledger: LedgerWriter, rates: Rates, principal: Principal, request_id: str, secret: bytes | None
    ) -> None:
        self._ledger = ledger
        self._rates = rates
        self._principal = principal
        self._request_id = request_id
        self._secret = secret
        self.charged_nano = 0

    @contextlib.asynccontextmanager
    async def search(self, terms: SearchTerms, query: str) -> AsyncIterator[None]:
        """Count the search in the block, and charge it. EngineFailed if it must not be made."""
        name = f"searches:{terms.per_day}:{self._principal.account_id}"  # a changed limit starts a new count
        ticket = await self._rates.take(name, Rate(terms.per_day / DAY_S, terms.per_day))
        if not ticket.is_granted:
            raise EngineFailed("per_day")
        hold = self._hold(Price(terms.price_nano, 0), query)
        answer = await self._ledger.hold(hold) if terms.price_nano else None
        if answer is None or isinstance(answer, Repeated):  # it is free, or another request is charged for it
            yield
        elif isinstance(answer, HeldCredit):
            with self._ending(hold, terms.engine):
                yield
        else:
            raise EngineFailed("credit")

    @contextlib.contextmanager
    def _ending(self, hold: Hold, engine: str) -> Iterator[None]:
        """Charge the search in the block, unless it fails."""
        started_s, status, is_charged = time.perf_counter(), 200, True
        try:
            yield
        except (EngineFailed, TimeoutError):
            status, is_charged = FAILED_STATUS, False
            raise
        except BaseException:  # the client disconnected
            status = DISCONNECTED_STATUS
            raise
        finally:
            self.charged_nano += hold.price.charge(ONE_SEARCH) if is_charged else 0
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

    def _hold(self, price: Price, query: str) -> Hold:
        principal, digest, now_ms = self._principal, None, clock.now_ms()
        if self._secret:
            digest = hmac.digest(self._secret, f"{SEARCH}\0{query}".encode(errors="replace"), "sha256")
        return Hold(
            completion_id=new_completion_id(now_ms),
            request_id=self._request_id,
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
