"""When each key was last used: noted in memory by each request, written to the store every second, many at once."""

from cadenza import clock
from cadenza.observe import Log
from cadenza.store.store import Store, StoreUnavailable
from cadenza.store.tables import keys


class KeyUse:
    """The uses that are not written yet. A store that does not answer delays them; it loses none."""

    every_s = 1.0

    def __init__(self, store: Store, log: Log) -> None:
        self._store = store
        self._log = log
        self._used_ms: dict[str, int] = {}

    def note(self, key_id: str) -> None:
        self._used_ms[key_id] = clock.now_ms()

    async def write(self) -> None:
        used_ms, self._used_ms = self._used_ms, {}
        if not used_ms:
            return
        try:
            await keys.touch(self._store, used_ms)
        except StoreUnavailable:
            self._log.repeated("cannot write when keys were last used; will try again")
            self._used_ms = used_ms | self._used_ms
