"""An application whose start fails, whoever starts it."""

from cadenza.http.exchange import Exchange


class Broken:
    """It never gets as far as to serve anything."""

    drain_s = 0.0

    async def start(self) -> bool:
        return False

    async def stop(self) -> None:
        raise AssertionError

    async def serve(self, exchange: Exchange) -> None:
        raise AssertionError

    def drain(self) -> None:
        raise AssertionError

    def cut(self) -> None:
        raise AssertionError

    async def until_idle(self) -> None:
        raise AssertionError

    async def reload(self) -> None:
        raise AssertionError


def build() -> Broken:
    return Broken()
