"""The state that all processes share: the rates of keys and networks, and the slots of the service.

The protocols are what the gateway asks for. `MemoryState` implements them for a single process.
"""

import time
from collections.abc import Callable
from typing import Protocol

from cadenza.core.rates import Rate, Ticket, take_ticket
from cadenza.core.shares import SlotLease, Use
from cadenza.observe import Observer

MEMORY = "memory://"  # the address of the state in the memory of a process
SWEEP_EVERY = 10_000


class Rates(Protocol):
    """The rates of many names. `take` never fails: without the shared state, a process decides by itself."""

    def take_now(self, name: str, rate: Rate) -> Ticket | None:
        """The same as `take`, without waiting; None if only `take` can tell."""

    async def take(self, name: str, rate: Rate) -> Ticket: ...

    def release(self, name: str, rate: Rate) -> None:
        """Return a ticket that was granted."""


class Borrower(Protocol):
    """The slots of this process."""

    def use(self) -> Use: ...

    def allow(self, allowance: SlotLease) -> None: ...


class Lender(Protocol):
    """Leases slots of the fleet to this process."""

    def begin(self, ceiling: int, borrower: Borrower) -> None:
        """Lease slots for this borrower. Until the first lease, it may use this process's share."""

    def change_ceiling(self, ceiling: int) -> None: ...

    def need_more(self) -> None:
        """A request waits for a slot."""


class SharedState(Protocol):
    """The rates of keys and of networks, and the lender of slots; None if this process has all slots for itself."""

    @property
    def rates(self) -> Rates: ...

    @property
    def networks(self) -> Rates: ...

    @property
    def lender(self) -> Lender | None: ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


OpenSharedState = Callable[[str, int, Observer], SharedState]  # at an address, for so many processes of this machine


class MemoryRates:
    """One number per name, dropped when its burst is full again, so memory is bounded by the recent requests."""

    def __init__(self, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock_ns = clock_ns
        self._whole_at_ns: dict[str, int] = {}
        self._sweep_at = SWEEP_EVERY

    def __len__(self) -> int:
        """How many names have a number."""
        return len(self._whole_at_ns)

    async def take(self, name: str, rate: Rate) -> Ticket:
        return self.take_now(name, rate)

    def take_now(self, name: str, rate: Rate) -> Ticket:
        now_ns = self._clock_ns()
        whole_at_ns = self._whole_at_ns
        whole_at_ns[name], ticket = take_ticket(whole_at_ns.get(name, 0), now_ns, rate)
        if len(whole_at_ns) >= self._sweep_at:
            self._sweep(now_ns)
        return ticket

    def release(self, name: str, rate: Rate) -> None:
        if name in self._whole_at_ns:
            self._whole_at_ns[name] -= rate.step_ns

    def note(self, name: str, reset_ns: int) -> None:
        """Set the time until the whole burst is available, as Valkey reported it."""
        now_ns = self._clock_ns()
        self._whole_at_ns[name] = now_ns + reset_ns
        if len(self._whole_at_ns) >= self._sweep_at:
            self._sweep(now_ns)

    def reset_ns(self, name: str) -> int:
        """The time until the whole burst is available."""
        return max(0, self._whole_at_ns.get(name, 0) - self._clock_ns())

    def resets_ns(self) -> list[tuple[str, int]]:
        """The time until the whole burst is available, for every name whose burst is not full."""
        now_ns = self._clock_ns()
        return [(name, at_ns - now_ns) for name, at_ns in self._whole_at_ns.items() if at_ns > now_ns]

    def _sweep(self, now_ns: int) -> None:
        self._whole_at_ns = {name: at_ns for name, at_ns in self._whole_at_ns.items() if at_ns > now_ns}
        self._sweep_at = len(self._whole_at_ns) + SWEEP_EVERY


class MemoryState:
    """The shared state of a service with one process, in its memory. Nothing waits for it."""

    def __init__(self) -> None:
        self.rates = MemoryRates()
        self.networks = MemoryRates()
        self.lender = None

    async def start(self) -> None:
        """Nothing to start."""

    async def stop(self) -> None:
        """Nothing to stop."""
