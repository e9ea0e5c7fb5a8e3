"""The composition root: builds the object graph from the settings, sends /v1 to the gateway and the rest to the web.

Start: the store (migrated where it is SQLite), then the upstreams; a model may go on loading while requests wait.
Reload: classes, routes, providers, characters, prices and limits are read again; what runs goes on where it is.
Stop: whatever was started is stopped, in the opposite order, and what was noted is written.
"""

import asyncio
import gc
import os
from collections.abc import Awaitable, Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path

from cadenza.config import ConfigError, Provider, Settings, load_settings, missing_secrets
from cadenza.core.rates import Rate
from cadenza.gateway.api import serve_api
from cadenza.gateway.compose import Character
from cadenza.gateway.gateway import Gateway
from cadenza.gateway.limits import Limits
from cadenza.http.exchange import Exchange
from cadenza.observe import FaultPoint, Log, Observer, make_log
from cadenza.routing.catalogue import Catalogue
from cadenza.routing.dispatch import Dispatcher
from cadenza.store import epochs, keys
from cadenza.store.database import Database, StoreUnavailable, migrate, schema_state
from cadenza.store.writer import LedgerWriter
from cadenza.upstreams.base import Upstream
from cadenza.upstreams.embedded.upstream import EmbeddedUpstream
from cadenza.upstreams.openai import OpenAIUpstream
from cadenza.web.site import Site

KEY_USE_EVERY_S = 1.0
GC_THRESHOLDS = (100_000, 20, 20)


class App:
    """The whole service, as the server runs it."""

    def __init__(self, settings: Settings, log: Log) -> None:
        self.settings = settings
        self.log = log
        self.db = Database(settings.store.url)
        self.upstreams = build_upstreams(settings, log)
        observer = Observer(log, FaultPoint(settings.fault_point))
        limits = limits_of(settings)
        self.gateway = Gateway(
            db=self.db,
            catalogue=catalogue_of(settings),
            dispatcher=Dispatcher(self.upstreams, observer, limits.concurrency),
            writer=LedgerWriter(self.db, observer),
            limits=limits,
            observer=observer,
        )
        self.gateway.read_again = self.reload
        self._site = Site(self._why_not_ready, observer.metrics, log)
        self._started = AsyncExitStack()
        self._retiring: set[asyncio.Task[None]] = set()
        self._reloading = asyncio.Lock()

    def serve(self, exchange: Exchange) -> Awaitable[None]:
        if exchange.path.startswith("/v1/") or exchange.path == "/v1":
            return serve_api(self.gateway, exchange)
        return self._site.serve(exchange)

    @property
    def drain_s(self) -> float:
        return self.settings.server.drain_s

    def drain(self) -> None:
        """Take nothing new."""
        self.log.info("draining", limit_s=self.drain_s)
        self.gateway.is_draining = True

    def cut(self) -> None:
        self.gateway.cut()

    async def until_idle(self) -> None:
        await self.gateway.until_idle()

    async def reload(self) -> None:
        """Read the config file again, once at a time. A mistake in it is logged, and everything stays as it was."""
        async with self._reloading:
            await self._reload()

    async def _reload(self) -> None:
        try:
            settings = load_settings(path_of(self.settings), os.environ, Path.cwd())
            if missing := missing_secrets(settings):
                raise ConfigError(missing, settings.source)
        except ConfigError as error:
            self.log.error("the config was not read again: it has mistakes", problems=error.problems)
            return
        before, upstreams = self.upstreams, build_upstreams(settings, self.log, self.settings, self.upstreams)
        for name, upstream in upstreams.items():
            if before.get(name) is not upstream:
                await upstream.start()
        self.settings, self.upstreams = settings, upstreams
        self.gateway.dispatcher.use(upstreams, limits_of(settings).concurrency)
        self.gateway.use(catalogue_of(settings), limits_of(settings))
        for name, upstream in before.items():
            if upstreams.get(name) is not upstream:
                task = asyncio.create_task(upstream.retire())
                self._retiring.add(task)
                task.add_done_callback(self._retiring.discard)
        self.log.info("the config was read again", classes=list(settings.classes), providers=list(settings.providers))

    async def start(self) -> bool:
        try:
            await self._start(self._started)
        except StoreUnavailable as error:
            self.log.error("cannot start", reason=str(error))
            await self._started.aclose()
            return False
        calm_the_collector()
        return True

    async def stop(self) -> None:
        await self._started.aclose()

    async def _start(self, stack: AsyncExitStack) -> None:
        stack.push_async_callback(self.db.close)
        await open_store(self.db)
        async with self.db.read() as connection:
            self.gateway.classes_epoch = await epochs.current(connection, epochs.CLASSES)
        await self.gateway.writer.start()
        stack.push_async_callback(self.gateway.writer.stop)
        writing = asyncio.create_task(self._write_key_use())
        stack.push_async_callback(self._stop_writing, writing)
        stack.push_async_callback(self._stop_upstreams)
        for upstream in self.upstreams.values():
            await upstream.start()

    async def _stop_upstreams(self) -> None:
        for upstream in self.upstreams.values():
            await upstream.stop()
        for task in list(self._retiring):
            task.cancel()
        await asyncio.gather(*self._retiring, return_exceptions=True)

    async def _why_not_ready(self) -> str | None:
        if self.gateway.is_draining:
            return "draining"
        if not self.gateway.has_usable_route():
            return "no route is usable"
        try:
            await self.db.ping()
        except StoreUnavailable:
            return "the store does not answer"
        return None

    async def _write_key_use(self) -> None:
        """When each key was last used, written a moment later and many at once: no request waits for it."""
        while True:
            await asyncio.sleep(KEY_USE_EVERY_S)
            await self._flush_key_use()

    async def _flush_key_use(self) -> None:
        used, self.gateway.keys_used = self.gateway.keys_used, {}
        if not used:
            return
        try:
            await keys.touch(self.db, used)
        except StoreUnavailable:
            self.log.warning("the store did not take when keys were last used; trying again")
            self.gateway.keys_used = used | self.gateway.keys_used

    async def _stop_writing(self, writing: asyncio.Task[None]) -> None:
        writing.cancel()
        with suppress(asyncio.CancelledError):
            await writing
        await self._flush_key_use()


def calm_the_collector() -> None:
    """What is here at the start stays, and need not be looked at again; requests make few cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def limits_of(settings: Settings) -> Limits:
    """Each worker process has its part of the slots."""
    given = settings.limits
    return Limits(Rate(given.requests_per_second, given.burst), -(-given.concurrency // settings.server.workers))


def catalogue_of(settings: Settings) -> Catalogue:
    return Catalogue(
        routes={class_id: one.routes for class_id, one in settings.classes.items()},
        characters={class_id: Character(one.character) for class_id, one in settings.classes.items()},
        prices=settings.prices,
    )


def path_of(settings: Settings) -> str | None:
    return str(settings.source) if settings.source else None


def build_upstreams(
    settings: Settings, log: Log, before: Settings | None = None, running: Mapping[str, Upstream] | None = None
) -> dict[str, Upstream]:
    """One upstream per provider that a route names; those of providers that are as they were go on."""
    windows = _windows(settings)
    kept = {
        name
        for name, window in (_windows(before) if before else {}).items()
        if before and before.providers[name] == settings.providers.get(name) and windows.get(name) == window
    }
    return {
        name: running[name] if running and name in kept else _upstream(settings.providers[name], window, log)
        for name, window in windows.items()
    }


def _windows(settings: Settings) -> dict[str, int]:
    """The largest window that a route asks of each provider."""
    windows: dict[str, int] = {}
    for one in settings.classes.values():
        for route in one.routes:
            windows[route.provider] = max(windows.get(route.provider, 0), route.context_tokens)
    return windows


def _upstream(provider: Provider, context_tokens: int, log: Log) -> Upstream:
    if provider.kind == "embedded":
        return EmbeddedUpstream(log, context_tokens, provider.model_path)
    assert provider.base_url
    return OpenAIUpstream(provider.base_url, provider.api_key, provider.dialect, provider.proxy)


async def open_store(db: Database) -> None:
    """SQLite is migrated where it stands; a Postgres is shared, so its operator runs `cadenza migrate`."""
    if db.is_sqlite:
        await migrate(db)
    elif (found := await schema_state(db)).state != "current":
        raise StoreUnavailable(f"The store's schema is {found.state}. Run 'cadenza migrate', then start again.")


def build_from_environment() -> App:
    """For worker processes, which are handed nothing but the environment."""
    return App(load_settings(None, os.environ, Path.cwd()), make_log())
