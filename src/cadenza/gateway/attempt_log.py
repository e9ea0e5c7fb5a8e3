"""Writes which requests to providers have no metering row (core/attempts.py), each minute and at the stop."""

from cadenza.observe import Observer
from cadenza.store.store import Store, StoreRefused, StoreUnavailable
from cadenza.store.tables import attempts


class AttemptLog:
    """A store that does not answer delays what was counted; it loses none."""

    every_s = 60.0

    def __init__(self, store: Store, observer: Observer) -> None:
        self._store = store
        self._observer = observer

    async def write(self) -> None:
        counted = self._observer.attempts.take()
        try:
            await attempts.add(self._store, counted)
        except (StoreUnavailable, StoreRefused):
            self._observer.log.warning("cannot write attempts at providers; will try again")
            self._observer.attempts.put_back(counted)
