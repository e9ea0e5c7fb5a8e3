"""An application whose start always fails."""

from cadenza.http.exchange import Exchange


class Broken:
    """Nothing but `start` is ever called."""

    drain_s = 0.0

    async def start(self) -> bool:
        return False

    async def stop(self) -> None:
        raise AssertionError

    async def serve(self, exchange: Exchange) -> None:
        raise AssertionError

    def drain(self) -> None:
        raise AssertionError

    def interrupt(self) -> None:
        raise AssertionError

    async def until_idle(self) -> None:
        raise AssertionError

    async def reload(self) -> None:
        raise AssertionError


def build() -> Broken:
    return Broken()
