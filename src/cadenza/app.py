"""The composition root: builds the object graph from the settings, and routes each request to the gateway or the site.

Start: the store (SQLite is migrated), the versions of classes, the shared state, presence, the gateway with its ledger,
then the upstreams. A model may still be loading afterwards. Stop: the same in reverse order.
Reload: classes, routes, providers, characters, prices, limits and what parts follow are read again, and from the store
the versions of classes and the rests of routes; requests in flight keep the old ones. Other sections need a restart: a
warning names them. A config with mistakes is not used: versions that were promoted meanwhile are served with the last
good one.
"""

import asyncio
import gc
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import msgspec

from cadenza import clock, parts
from cadenza.config import ConfigError, Settings, load_settings
from cadenza.config.build import (
    UpstreamSpec,
    build_upstream,
    build_upstreams,
    upstream_specs,
)
from cadenza.config.class_records import class_rules, provider_costs, resolve_classes
from cadenza.config.settings import DEFAULT_PRICES
from cadenza.control.class_versions import ServingProcess
from cadenza.control.price_changes import read_schedules, say_unused
from cadenza.control.retention_keeper import RetentionKeeper
from cadenza.control.store.prepare import WriteCheck, prepare_store
from cadenza.core.aliases import Aliases
from cadenza.core.classes import ClassState, ClassVersion
from cadenza.core.errors import ControlError
from cadenza.core.price_schedules import PriceSchedule
from cadenza.core.rates import Limits, Rate
from cadenza.core.records import Plan
from cadenza.fleet.background import follow, repeat, running
from cadenza.fleet.presence import Presence
from cadenza.fleet.shared import MEMORY, MemoryState, OpenSharedState, SharedState
from cadenza.gateway.api import Router
from cadenza.gateway.endpoints import is_api, refuse_connection, refuse_malformed
from cadenza.gateway.gateway import Gateway, State, body_bytes_max
from cadenza.gateway.in_flight import NO_KEY, RevocationWatch
from cadenza.gateway.written_later import AttemptLog, DetailLog, KeyUse
from cadenza.http.connection import ConnectionSettings
from cadenza.http.exchange import Exchange
from cadenza.http.headers import TrustedProxies
from cadenza.observe import FaultPoint, Log, LoopLag, Observer, catch_strays, loop_errors, make_log
from cadenza.observe.minutes import EVERY_S, MinuteRing
from cadenza.observe.worker_metrics import Family, WorkerMetrics, read_families
from cadenza.process import memory_room
from cadenza.routing.catalogue import Catalogue, ServedClass, Snapshot
from cadenza.routing.prompt import Character
from cadenza.server.probes import HostNames, Probes
from cadenza.server.service_health import ServiceHealth
from cadenza.service import Run, Service
from cadenza.store.address import open_store
from cadenza.store.sqlite.lost_commits import NEWEST_ENTRY, NOTE_EVERY_S
from cadenza.store.store import StoreUnavailable
from cadenza.store.tables import epochs, route_rests
from cadenza.upstreams.base import Upstream

WORKERS_FOLDER = "CADENZA_WORKERS_FOLDER"  # names the folder of metrics to worker processes
GC_THRESHOLDS = (100_000, 20, 20)
FIXED_SECTIONS = (
    "server",
    "store",
    "shared_state",
    "retention",
)  # a reload does not change them, and neither most tables of parts


class App:
    """The whole service, as the server runs it. The gateway is built by the start, with what the store says."""

    gateway: Gateway
    _router: Router
    _service: Service

    def __init__(self, settings: Settings, log: Log, workers_folder: Path | None = None) -> None:
        self._settings = settings
        self._log = log
        self._store = open_store(settings.store.url)
        self._observer = observer = Observer(log, FaultPoint(settings.fault_point) if settings.fault_point else None)
        self._states: dict[str, ClassState] = {}  # of the classes that are served
        self._shared = open_shared_state(settings, observer)
        self._presence = Presence(self._store)
        token = settings.server.metrics_token
        self._workers = WorkerMetrics(observer.metrics, workers_folder) if workers_folder else None
        render = self._workers.render if self._workers else None
        names = HostNames(settings.site_url)
        self._started = AsyncExitStack()
        self._retiring: set[asyncio.Task[None]] = set()
        self._minutes = MinuteRing()
        self._health = ServiceHealth(
            lambda: self.gateway, WriteCheck(self._store, log), self._read_metrics, self._minutes
        )
        self._probes = Probes(self._health, observer, token, render, names, lambda: self._presence.name)

    @property
    def drain_s(self) -> float:
        return self._settings.server.drain_s

    @property
    def connection_settings(self) -> ConnectionSettings:
        return ConnectionSettings(
            proxies=TrustedProxies(self._settings.server.trusted_proxies),
            refuse_malformed=partial(refuse_malformed, self._observer),
        )

    def serve(self, exchange: Exchange) -> Awaitable[None]:
        path = exchange.request.path
        if (endpoint := self._router.exact.get(path)) or is_api(path):
            return self._service.serve_api(exchange, endpoint)
        return self._probes.serve(exchange) if self._probes.serves(exchange.request) else self._serve_page(exchange)

    def refuse(self, exchange: Exchange) -> Awaitable[None]:
        exchange.close_after_reply()
        if self._probes.serves(exchange.request):
            return self._probes.serve(exchange)
        return refuse_connection(self._observer, exchange)

    async def _serve_page(self, exchange: Exchange) -> None:
        self.gateway.in_flight.key_digests[exchange] = NO_KEY
        try:
            await self._service.serve_page(exchange)
        finally:
            self.gateway.in_flight.end(exchange)

    async def _read_metrics(self) -> list[Family]:
        """The metrics of all workers, or of this process if it is the only one."""
        return await self._workers.read() if self._workers else read_families(self._observer.metrics.registry)

    async def start(self) -> bool:
        asyncio.get_running_loop().set_exception_handler(loop_errors(self._log))
        try:
            await self._start(self._started)
        except (StoreUnavailable, ControlError) as error:
            self._log.error("cannot start", reason=str(error))
            await self._started.aclose()
            return False
        tune_garbage_collector()
        return True

    async def stop(self) -> None:
        await self._started.aclose()

    def drain(self) -> None:
        self._log.info("draining", limit_s=self.drain_s)
        self.gateway.in_flight.is_draining = True

    def interrupt(self) -> None:
        self.gateway.in_flight.interrupt()

    async def until_idle(self) -> None:
        await self.gateway.in_flight.until_idle()

    async def reload(self) -> None:
        try:
            await self.gateway.reloader.reload()
        except StoreUnavailable as error:
            self._log.error("the config was not reloaded", reason=str(error))

    async def _start(self, stack: AsyncExitStack) -> None:
        if self._workers:
            await stack.enter_async_context(self._workers.running())
        stack.push_async_callback(self._store.close)
        await prepare_store(self._store, self._log_backup)
        epoch = await epochs.current(self._store, epochs.CLASSES)  # first: a later change is seen as a later epoch
        self.gateway = await self._build_gateway()
        self._router = Router(self.gateway)
        await self._enter_parts(stack)
        await stack.enter_async_context(running(asyncio.to_thread(self.gateway.dispatcher.tokenizer.load)))
        await self._shared.start()
        stack.push_async_callback(self._shared.stop)
        await self._presence.start()
        stack.push_async_callback(self._presence.stop)
        if self._store.process_locks:
            await stack.enter_async_context(running(repeat(self._note_newest, NOTE_EVERY_S, self._log, at_once=True)))
        await self._keep_writing(stack, AttemptLog(self._store, self._observer))
        await self._keep_writing(stack, DetailLog(self._store, self._observer))
        await self.gateway.start(epoch)
        stack.push_async_callback(self.gateway.stop)
        stack.push_async_callback(self.gateway.key_use.write, is_last=True)
        await self._keep_writing(stack, self.gateway.key_use)
        keeper = RetentionKeeper(self._store, self._settings.retention, self._log)
        await stack.enter_async_context(running(keeper.run()))
        gateway = self.gateway
        revocations = RevocationWatch(gateway.in_flight, gateway.key_cache, self._presence, self._log)
        await stack.enter_async_context(running(revocations.run()))
        changed = asyncio.Event()
        self._presence.on_change(changed.set)
        await stack.enter_async_context(running(follow(changed, self._catch_up, self._log)))
        await stack.enter_async_context(running(repeat(self._health.note_minute, EVERY_S, self._log, at_once=True)))
        stack.callback(LoopLag(self._observer.metrics).stop)
        stack.push_async_callback(self._stop_upstreams)
        for upstream in self.gateway.snapshot.upstreams.values():
            await upstream.start()

    async def _enter_parts(self, stack: AsyncExitStack) -> None:
        """Parts are entered in the order of their list, and left after the gateway has stopped."""
        self._service = Service(
            settings=self._settings,
            log=self._log,
            observer=self._observer,
            store=self._store,
            presence=self._presence,
            shared=self._shared,
            gateway=self.gateway,
            router=self._router,
            serve_api=self._router.serve,
            health=self._health,
            minutes=self._minutes,
            read_metrics=self._read_metrics,
            class_rules=lambda class_id: class_rules(self._settings, class_id),
            retire=self._retire,
        )
        for part in parts.having("run"):
            if part.is_default or self._settings.tables.keys() & part.tables:
                run: Run = part.load("run").run
                await stack.enter_async_context(run(self._service))

    async def _note_newest(self) -> None:
        """Note the newest entry, so that the next start finds out if it was lost with the write-ahead log."""
        newest = await self._store.row(NEWEST_ENTRY, {})
        assert newest
        self._presence.note(int(newest[0]))

    async def _keep_writing(self, stack: AsyncExitStack, log: AttemptLog | DetailLog | KeyUse) -> None:
        """Write what it gathers, again and again, and once more at the end."""
        stack.push_async_callback(log.write)
        await stack.enter_async_context(running(repeat(log.write, log.every_s, self._log)))

    async def _build_gateway(self) -> Gateway:
        settings, observer = self._settings, self._observer
        self._states = await self._resolve_classes(settings)
        catalogue = build_catalogue(settings, self._states, await self._read_prices(settings))
        upstreams = build_upstreams(settings, self._log, catalogue.routes())
        state = State(self._store, self._presence, self._shared)
        snapshot = Snapshot(catalogue, upstreams, build_limits(settings), provider_costs(settings, catalogue.routes()))
        body_bytes = body_bytes_max(memory_room(settings.server.workers))
        gateway = Gateway(state, snapshot, self._load_snapshot, observer, body_bytes=body_bytes)
        await self._rest_routes(gateway)
        return gateway

    async def _rest_routes(self, gateway: Gateway) -> bool:
        """Whether other routes rest than before, or until another time."""
        rests = await route_rests.list_since(self._store, 0)  # also those that are over, as long as the store has them
        return gateway.dispatcher.health.rest({one.route: one.until_at for one in rests}, clock.now_ms())

    async def _catch_up(self) -> None:
        """Load what was changed even if no request comes that would: the pages show it."""
        await self.gateway.reloader.catch_up(await epochs.current(self._store, epochs.CLASSES))

    async def _load_snapshot(self) -> Snapshot | None:
        """Read the config and the versions of classes again, and which routes rest.

        None if nothing can be used, or there is nothing new but a rest: then circuit breakers stay as they are.
        """
        has_new_rest = await self._rest_routes(self.gateway)
        for settings in filter(None, (self._read_settings(), self._settings)):
            try:
                states = await self._resolve_classes(settings)
            except ControlError as error:
                self._log.error("the config was not reloaded: it has mistakes", problems=[error.message])
            else:
                break
        else:
            return None
        prices = await self._read_prices(settings)
        is_same = all(one.prices == prices[one.plan.class_id] for one in self.gateway.snapshot.catalogue.served())
        has_old_settings = settings is self._settings or (has_new_rest and settings == self._settings)
        if has_old_settings and states == self._states and is_same:
            return None
        catalogue = build_catalogue(settings, states, prices)
        upstreams = await self._change_upstreams(upstream_specs(settings, catalogue.routes()))
        for table, change in self._service.on_reload.items():
            if settings.tables.get(table) != self._settings.tables.get(table):
                change(settings)
        if settings is not self._settings:
            providers = list(settings.providers)
            self._log.info("the config was reloaded", classes=list(settings.classes), providers=providers)
        self._log_versions(states)
        self._settings, self._states = settings, states
        return Snapshot(catalogue, upstreams, build_limits(settings), provider_costs(settings, catalogue.routes()))

    async def _read_prices(self, settings: Settings) -> dict[str, PriceSchedule]:
        """The prices of classes, with their changes to come. A price of the config that is not used is logged."""
        found = await read_schedules(self._store, settings.prices, clock.now_ms())
        for class_id, schedule in found.items():
            if unused := say_unused(class_id, settings.prices[class_id], DEFAULT_PRICES[class_id], schedule):
                self._log.warning("a price of the config is not used", class_id=class_id, reason=unused)
        return found

    def _read_settings(self) -> Settings | None:
        """The config file as it is now. None, and a log line, if it has mistakes."""
        source = self._settings.source
        try:
            settings = load_settings(str(source) if source else None, os.environ, Path.cwd())
            settings.require_complete()
        except ConfigError as error:
            self._log.error("the config was not reloaded: it has mistakes", problems=error.problems)
            return None
        return self._keep_fixed_sections(settings)

    async def _change_upstreams(self, specs: dict[str, UpstreamSpec]) -> dict[str, Upstream]:
        """Start the upstreams that are new. Those that are no longer wanted stop after their last request."""
        running = self.gateway.snapshot.upstreams
        before = upstream_specs(self._settings, self.gateway.snapshot.catalogue.routes())
        upstreams = {
            name: running[name] if before.get(name) == spec else build_upstream(spec, self._log)
            for name, spec in specs.items()
        }
        for name, upstream in upstreams.items():
            if running.get(name) is not upstream:
                await upstream.start()
        for name, upstream in running.items():
            if upstreams.get(name) is not upstream:
                self._retire(upstream.stop)
        return upstreams

    async def _resolve_classes(self, settings: Settings) -> dict[str, ClassState]:
        process = ServingProcess(self._states, partial(log_replaced, self._log))
        return await resolve_classes(self._store, settings, process)

    def _log_versions(self, states: Mapping[str, ClassState]) -> None:
        """One line for each class that is served otherwise than before."""
        for class_id, state in states.items():
            before = self._states[class_id].version.number if class_id in self._states else None
            if before != state.version.number:
                self._log.info("a class has changed", class_id=class_id, version=state.version.number, before=before)

    def _keep_fixed_sections(self, loaded: Settings) -> Settings:
        kept = {name: getattr(self._settings, name) for name in FIXED_SECTIONS}
        before, after = self._settings.tables, loaded.tables
        fixed = set(parts.TABLES) - self._service.on_reload.keys()
        changed = [name for name in FIXED_SECTIONS if getattr(loaded, name) != kept[name]]
        if changed := [*changed, *sorted(name for name in fixed if after.get(name) != before.get(name))]:
            self._log.warning("the config has changes that need a restart", sections=changed)
        tables = {name: one for name, one in after.items() if name not in fixed}
        tables |= {name: one for name, one in before.items() if name in fixed}
        return msgspec.structs.replace(loaded, tables=tables, **kept)

    def _retire(self, stop: Callable[[], Awaitable[None]]) -> None:
        """Stop a part once the requests that may still use it have ended, or when the service stops."""

        async def retire() -> None:
            try:
                await self.gateway.in_flight.until_ended()
            finally:
                await stop()

        task = asyncio.create_task(retire())
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    async def _stop_upstreams(self) -> None:
        for upstream in self.gateway.snapshot.upstreams.values():
            await upstream.stop()
        for task in list(self._retiring):
            task.cancel()
        await asyncio.gather(*self._retiring, return_exceptions=True)

    def _log_backup(self, copy: Path) -> None:
        self._log.info("the store was copied before its migration", copy=str(copy))


def log_replaced(log: Log, before: ClassState, after: ClassState) -> None:
    """The config has replaced what was served. An edit does that, and so does a process with another config."""
    class_id, is_older = after.version.class_id, after.version.number < before.version.number
    log.log(
        "warning" if is_older else "info",
        "the config replaces what serves a class",
        class_id=class_id,
        version=after.version.number,
        before=before.version.number,
        advice="If you did not change the config, processes on this store have different ones: give all the same, "
        f"or let the store decide with 'cadenza class adopt {class_id}'.",
    )


def tune_garbage_collector() -> None:
    """Exempt the objects of the start from collection, and collect rarely: requests make few cycles."""
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def build_limits(settings: Settings) -> Limits:
    """Without shared state, each worker process gets an equal share of the slots."""
    given, processes = settings.limits, settings.server.workers if settings.shared_state.url == MEMORY else 1
    rate, concurrency = Rate(given.requests_per_second, given.burst), -(-given.concurrency // processes)
    return Limits(rate, concurrency)


def build_catalogue(
    settings: Settings, states: Mapping[str, ClassState], prices: Mapping[str, PriceSchedule]
) -> Catalogue:
    """The price is the class's: the same for every version."""

    def served(version: ClassVersion) -> ServedClass:
        return ServedClass(
            Plan.of(version.class_id, version.routes),
            Character(version.character),
            prices[version.class_id],
            version=version.number,
        )

    classes = {class_id: served(state.version) for class_id, state in states.items()}
    return Catalogue(classes, Aliases(settings.models.aliases))


def open_shared_state(settings: Settings, observer: Observer) -> SharedState:
    """The shared state at the address of the settings. Nothing is opened until it is started."""
    if settings.shared_state.url == MEMORY:
        observer.metrics.shared_state_up.set(1)
        return MemoryState()
    part = parts.find(settings.shared_state.url)
    assert part, "the config has checked it"
    opened: OpenSharedState = part.load("open").open_shared_state
    return opened(settings.shared_state.url, settings.server.workers, observer)


def build_from_environment() -> App:
    """For worker processes, which are given nothing but the environment."""
    folder, log = os.environ.get(WORKERS_FOLDER), make_log()
    catch_strays(log)
    try:
        settings = load_settings(None, os.environ, Path.cwd())
    except ConfigError as error:
        log.critical("a worker did not start: the config has mistakes", problems=error.problems)
        raise SystemExit(1) from None
    return App(settings, log, Path(folder) if folder else None)
