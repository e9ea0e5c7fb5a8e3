"""What this process knows about the health of its service: the facts for /readyz and for the operator's overview."""

import shutil
import time
from collections.abc import Callable

import msgspec

from cadenza.control.store.prepare import WriteCheck
from cadenza.gateway.gateway import Gateway
from cadenza.observe.facts import Facts, read_facts
from cadenza.observe.health import COUNTERS, blocking, problems
from cadenza.observe.minutes import MinuteRing, read_totals
from cadenza.observe.problem import Problem
from cadenza.observe.worker_metrics import Family, ReadMetrics


class ServiceHealth:
    """`read_metrics` reads those of all workers of the machine. The gateway is there once the service has started."""

    def __init__(
        self,
        gateway: Callable[[], Gateway],
        write_check: WriteCheck,
        read_metrics: ReadMetrics,
        minutes: MinuteRing,
    ) -> None:
        self._gateway = gateway
        self._write_check = write_check
        self._read_metrics = read_metrics
        self._minutes = minutes
        self.notes: dict[str, Callable[[], str]] = {}  # kind of a problem -> says what is wrong in this process

    async def blocking(self) -> list[Problem]:
        """Why it takes no chats: enough for a probe, and cheap."""
        return blocking(problems(await self._check_readiness(Facts())))

    async def problems(self) -> list[Problem]:
        """All that is wrong."""
        families = await self.note_minute()
        facts = await self._check_readiness(read_facts(families, self._minutes, time.time()))
        slots, path = self._gateway().slots, self._gateway().store.path
        return problems(
            msgspec.structs.replace(
                facts,
                disk_free_bytes=shutil.disk_usage(path.parent).free if path else None,
                slots_limit=slots.ceiling if slots.is_lent else facts.slots_limit,
                notes={kind: say() for kind, say in self.notes.items()},
            )
        )

    async def note_minute(self) -> list[Family]:
        """The metrics as they are now. What they count is added to this minute."""
        families = await self._read_metrics()
        self._minutes.note(read_totals(families, COUNTERS), time.time())
        return families

    async def _check_readiness(self, facts: Facts) -> Facts:
        """A trial write shows whether the store takes writes, and how fast."""
        gateway, started_s = self._gateway(), time.monotonic()
        failure = await self._write_check.failure()
        if failure:
            gateway.ledger.distrust_store()
        return msgspec.structs.replace(
            facts,
            is_draining=gateway.in_flight.is_draining,
            no_route=not gateway.has_usable_route(),
            store_failure=failure.problem if failure else "",
            store_advice=failure.advice if failure else "",
            write_s=time.monotonic() - started_s,
        )
