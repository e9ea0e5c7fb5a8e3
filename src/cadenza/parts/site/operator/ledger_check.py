"""Runs the ledger check and the close of months for the operator's pages: in the background, one at a time.

Results are in the audit log. What cannot be done, because the store does not answer or a month cannot be closed, is
shown until the next one.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

from cadenza import clock
from cadenza.control.money.statement import check_ledger
from cadenza.core.errors import ControlError
from cadenza.core.records import Operator
from cadenza.ledger.check import CheckCounts, Violation
from cadenza.observe import Log
from cadenza.store.store import Store, StoreUnavailable
from cadenza.store.tables import audit_events
from cadenza.store.tables.audit_events import AuditEvent, LoggedEvent

EVENT = "ledger.check"
SUBJECT = "ledger"
RESULTS_SHOWN = 10
FINDINGS_WRITTEN = 5

CloseMonth = Callable[[Store, str, Operator, int], Awaitable[object]]  # of a part: the month, by whom, and when


class LedgerCheck:
    """The check of this process, or its close of a month."""

    def __init__(self, store: Store, log: Log) -> None:
        self._store = store
        self._log = log
        self._running: asyncio.Task[None] | None = None
        self.problem = ""  # why the last check could not be made, or the last month not be closed
        self.closing = ""  # the month that the last task was to close; empty: it was a check

    @property
    def is_running(self) -> bool:
        return self._running is not None and not self._running.done()

    def begin(self, by: Operator, month: str = "", close: CloseMonth | None = None) -> asyncio.Task[None] | None:
        """Start a check for this operator, or the close of a month; None if either runs already."""
        if self.is_running:
            return None
        self.problem, self.closing = "", month
        self._running = asyncio.create_task(self._close(month, by, close) if close else self._check(by))
        return self._running

    async def results(self) -> list[LoggedEvent]:
        """The newest results, newest first, of all processes."""
        return await audit_events.list_of_service(self._store, EVENT, RESULTS_SHOWN)

    async def _close(self, month: str, by: Operator, close: CloseMonth) -> None:
        try:
            await close(self._store, month, by, clock.now_ms())
        except ControlError as error:
            self.problem = error.message
        except StoreUnavailable as error:
            self.problem = f"The store did not answer in time, so {month} was not closed. Try again later."
            self._log.warning("a month was not closed", reason=str(error))

    async def _check(self, by: Operator) -> None:
        started_s = time.monotonic()
        try:
            found = await check_ledger(self._store)
            detail = describe(found.findings, found.counts, time.monotonic() - started_s)
            event = AuditEvent(clock.now_ms(), by, EVENT, None, SUBJECT, detail)
            await self._store.transact(lambda tx: audit_events.add(tx, event))
        except StoreUnavailable as error:
            self.problem = "The store did not answer in time, so the ledger was not checked. Try again later."
            self._log.warning("the ledger was not checked", reason=str(error))


def describe(findings: list[Violation], counts: CheckCounts, took_s: float) -> str:
    """One line: what was checked, and the first findings."""
    checked = (
        f"{counts.accounts:,} accounts, {counts.entries:,} entries, {counts.requests:,} requests in {took_s:.1f} s"
    )
    if not findings:
        return f"no findings: {checked}"
    shown = [
        f"{one.subject} breaks '{one.rule}'" + (f" by {one.off_by_dollars}" if one.off_by else "")
        for one in findings[:FINDINGS_WRITTEN]
    ]
    return f"{len(findings)} findings: {checked}. " + "; ".join(shown)
