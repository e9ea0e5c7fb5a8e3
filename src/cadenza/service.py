"""What a part gets of a service that starts, and what it may put in place of the core's."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from cadenza.config import Settings
from cadenza.gateway.api import ServeApi
from cadenza.observe import Observer


class Service:
    """`serve_api` answers the requests under /v1."""

    def __init__(self, settings: Settings, observer: Observer, serve_api: ServeApi) -> None:
        self.settings = settings
        self.observer = observer
        self.serve_api = serve_api


Run = Callable[[Service], AbstractAsyncContextManager[None]]  # of a part, from the start of the service to its end
