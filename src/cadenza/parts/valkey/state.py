"""The shared state of a fleet, in Valkey or Redis 7. Each process has one connection to it."""

import secrets
import time
from collections.abc import Callable

from cadenza.observe import Observer
from cadenza.parts.valkey.connection import ValkeyAddress
from cadenza.parts.valkey.link import ValkeyLink, ValkeyTiming
from cadenza.parts.valkey.rates import ValkeyRates
from cadenza.parts.valkey.slots import ValkeyLender


class ValkeyState:
    """Rates and slots of all processes. `processes` is their number until Valkey reports it.

    `name` is the name of this process in Valkey, and `now_s` its clock.
    """

    def __init__(
        self,
        url: str,
        processes: int,
        observer: Observer,
        timing: ValkeyTiming | None = None,
        name: str | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        timing = timing or ValkeyTiming()
        self._link = ValkeyLink(ValkeyAddress.parse(url), timing, observer, now_s)
        self.lender = ValkeyLender(self._link, timing, processes, name or secrets.token_hex(8))
        self.rates = ValkeyRates(self._link, "rate", lambda: self.lender.processes, timing)
        self.networks = ValkeyRates(self._link, "network", lambda: self.lender.processes, timing)
        self._link.pushed = self.lender.on_message
        self._link.came_up = self._come_up

    @property
    def is_up(self) -> bool:
        return self._link.is_up

    async def start(self) -> None:
        await self._link.start()
        self.lender.start()

    def _come_up(self) -> None:
        self.rates.send_all()
        self.networks.send_all()
        self.lender.start()

    async def stop(self) -> None:
        self._link.came_up = lambda: None
        await self.lender.stop()
        await self._link.stop()
