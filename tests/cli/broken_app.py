"""An application whose start fails, whoever starts it."""

from typing import Any

from cadenza.listen import ASGI


def build() -> ASGI:
    return _fail


async def _fail(_scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "lifespan.startup.failed"})
