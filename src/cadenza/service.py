"""What a part gets of a service that starts, and what it may put in place of the core's plain defaults."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

import msgspec

from cadenza.config import Settings
from cadenza.control.class_changes import ClassRules
from cadenza.core.email import Post
from cadenza.fleet.presence import Presence
from cadenza.fleet.shared import SharedState
from cadenza.gateway.api import Router, ServeApi
from cadenza.gateway.gateway import Gateway
from cadenza.http.exchange import Exchange
from cadenza.observe import Log, Observer
from cadenza.observe.minutes import MinuteRing
from cadenza.observe.worker_metrics import ReadMetrics
from cadenza.server.probes import refuse_page
from cadenza.server.service_health import ServiceHealth
from cadenza.store.store import Store


class Service(msgspec.Struct, kw_only=True):
    """The first fields are the core. A part replaces the others, in its `run`, before any request comes."""

    settings: Settings
    log: Log
    observer: Observer
    store: Store
    presence: Presence
    shared: SharedState
    gateway: Gateway
    router: Router
    health: ServiceHealth
    minutes: MinuteRing
    read_metrics: ReadMetrics  # of all worker processes
    class_rules: Callable[[str], ClassRules]  # what the config says about a class, as it was last read
    retire: Callable[[Callable[[], Awaitable[None]]], None]  # stop something, after the requests that may use it
    serve_api: ServeApi  # the requests to what the router has
    serve_page: Callable[[Exchange], Awaitable[None]] = refuse_page  # all other requests
    on_reload: dict[str, Callable[[Settings], None]] = {}  # what follows a change of this table; the others are fixed
    post: Post | None = None  # for e-mails; None: none is sent
    made: dict[type, object] = {}  # by parts in their `run`, for their pages


Run = Callable[[Service], AbstractAsyncContextManager[None]]  # of a part, from the start of the service to its end
