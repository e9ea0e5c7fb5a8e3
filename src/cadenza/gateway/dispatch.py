"""From a plan to an open reply: routes are tried in order until one begins to answer. The only retry loop there is.

It ends at the first piece: once a client has been sent a byte, a failure is the relay's to tell.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from cadenza.core.errors import CadenzaError, InvalidRequest, RateLimited, UpstreamFailed
from cadenza.core.records import Plan, Route
from cadenza.observe import Observer
from cadenza.upstreams.base import Ask, Fault, FaultKind, OpenReply, Upstream

BUSY_RETRY_S = 2.0


class Dispatcher:
    """Knows the upstream behind each provider's name."""

    def __init__(self, upstreams: Mapping[str, Upstream], observer: Observer) -> None:
        self._upstreams = upstreams
        self._log = observer.log
        self._metrics = observer.metrics

    @asynccontextmanager
    async def open_first(self, plan: Plan, ask: Ask) -> AsyncIterator[tuple[Route, OpenReply]]:
        async with AsyncExitStack() as stack:
            route, reply = await self._enter_first(stack, plan, ask)
            try:
                yield route, reply
            except Fault as fault:  # it broke off, and nothing of it was sent
                self.note(route, fault.kind.value, fault.status)
                raise _answer([fault]) from None

    async def _enter_first(self, stack: AsyncExitStack, plan: Plan, ask: Ask) -> tuple[Route, OpenReply]:
        faults: list[Fault] = []
        for route in plan.routes:
            try:
                return route, await stack.enter_async_context(self._upstreams[route.provider].open(route, ask))
            except Fault as fault:
                self.note(route, fault.kind.value, fault.status)
                faults.append(fault)
                if fault.kind is FaultKind.REFUSED:
                    break
        raise _answer(faults)

    def note(self, route: Route, kind: str, status: int | None = None) -> None:
        self._metrics.faults.labels(route.provider, kind).inc()
        self._log.warning("upstream fault", provider=route.provider, kind=kind, status=status)


def _answer(faults: list[Fault]) -> CadenzaError:
    """What the client is told when no route answered."""
    if faults[-1].kind is FaultKind.REFUSED:
        return InvalidRequest(
            "The model cannot take this request: it is too long for the model, or a field of it is not supported."
        )
    if all(fault.kind is FaultKind.BUSY for fault in faults):
        waits_s = [fault.retry_after_s for fault in faults if fault.retry_after_s is not None]
        return RateLimited("The service is saturated. Retry shortly.", min(waits_s, default=BUSY_RETRY_S))
    return UpstreamFailed("The model failed to answer. Retry; nothing was charged.")
