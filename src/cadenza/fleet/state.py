"""What the gateway asks of the shared state. It is kept in this process (`memory`), or in Valkey for a whole fleet."""

from typing import Protocol

from cadenza.core.rates import Rate, Ticket
from cadenza.core.shares import Allowance, Use


class Rates(Protocol):
    """The rates of many names. A ticket is always given: a shared state that fails never refuses a request."""

    async def take(self, name: str, rate: Rate) -> Ticket: ...

    def give_back(self, name: str, rate: Rate) -> None:
        """Return a ticket that was granted."""


class Borrower(Protocol):
    """The slots of this process."""

    def use(self) -> Use: ...

    def allow(self, allowance: Allowance) -> None: ...


class Lender(Protocol):
    """Lends slots of the fleet to this process."""

    def begin(self, ceiling: int, borrower: Borrower) -> None:
        """Lend to this borrower from now on. Without an answer yet, it may have this process's share."""

    def change_ceiling(self, ceiling: int) -> None: ...

    def need_more(self) -> None:
        """A request waits for a slot."""


class SharedState(Protocol):
    """Rates of keys, rates of the networks that unknown keys come from, and the lender of slots, if there is one."""

    @property
    def rates(self) -> Rates: ...

    @property
    def networks(self) -> Rates: ...

    @property
    def lender(self) -> Lender | None: ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...
