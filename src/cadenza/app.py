"""The composition root: builds the object graph from the settings, sends /v1 to the gateway and the rest to the web.

Start: the store (migrated where it is SQLite), then the upstreams; a model may go on loading while requests wait.
Stop: whatever was started is stopped, in the opposite order, and what was noted is written.
"""

import asyncio
import os
from contextlib import AsyncExitStack, suppress
from pathlib import Path

from cadenza.config import Provider, Settings, load_settings
from cadenza.gateway.app import serve_api
from cadenza.gateway.call import Receive, Scope, Send
from cadenza.gateway.classes import Catalogue
from cadenza.gateway.compose import Character
from cadenza.gateway.context import Gateway
from cadenza.gateway.dispatch import Dispatcher
from cadenza.observe import FaultPoint, Log, Observer, make_log
from cadenza.store import keys
from cadenza.store.database import Database, StoreUnavailable, migrate, schema_state
from cadenza.store.writer import LedgerWriter
from cadenza.upstreams.base import Upstream
from cadenza.upstreams.embedded import EmbeddedUpstream
from cadenza.upstreams.openai import OpenAIUpstream
from cadenza.web.site import Site

KEY_USE_EVERY_S = 1.0


class App:
    """The whole service, as an ASGI application."""

    def __init__(self, settings: Settings, log: Log) -> None:
        self.settings = settings
        self.log = log
        self.db = Database(settings.store.url)
        self.upstreams = build_upstreams(settings, log)
        observer = Observer(log, FaultPoint(settings.fault_point))
        classes = settings.classes.items()
        self.gateway = Gateway(
            db=self.db,
            catalogue=Catalogue(
                routes={class_id: one.routes for class_id, one in classes},
                characters={class_id: Character(one.character) for class_id, one in classes},
                prices=settings.prices,
            ),
            dispatcher=Dispatcher(self.upstreams, observer),
            writer=LedgerWriter(self.db, observer),
            observer=observer,
        )
        self._site = Site(self._why_not_ready, observer.metrics)
        self._is_draining = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif (scope["path"] + "/").startswith("/v1/"):
            await serve_api(self.gateway, scope, receive, send)
        else:
            await self._site(scope, send)

    def drain(self) -> None:
        self._is_draining = True

    async def _live(self, receive: Receive, send: Send) -> None:
        async with AsyncExitStack() as stack:
            await receive()
            try:
                await self._start(stack)
            except StoreUnavailable as error:
                self.log.error("cannot start", reason=str(error))
                await send({"type": "lifespan.startup.failed"})
                return
            await send({"type": "lifespan.startup.complete"})
            await receive()
            self.drain()
        await send({"type": "lifespan.shutdown.complete"})

    async def _start(self, stack: AsyncExitStack) -> None:
        stack.push_async_callback(self.db.close)
        await open_store(self.db)
        await self.gateway.writer.start()
        stack.push_async_callback(self.gateway.writer.stop)
        writing = asyncio.create_task(self._write_key_use())
        stack.push_async_callback(self._stop_writing, writing)
        for upstream in self.upstreams.values():
            stack.push_async_callback(upstream.stop)
            await upstream.start()

    async def _why_not_ready(self) -> str | None:
        if self._is_draining:
            return "draining"
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
            async with self.db.write() as connection:
                await keys.touch(connection, used)
        except StoreUnavailable:
            self.log.warning("the store did not take when keys were last used; trying again")
            self.gateway.keys_used = used | self.gateway.keys_used

    async def _stop_writing(self, writing: asyncio.Task[None]) -> None:
        writing.cancel()
        with suppress(asyncio.CancelledError):
            await writing
        await self._flush_key_use()


def build_upstreams(settings: Settings, log: Log) -> dict[str, Upstream]:
    """One upstream per provider that a route names."""
    routes = [route for one in settings.classes.values() for route in one.routes]
    named = {route.provider for route in routes}
    return {
        name: _upstream(provider, max(r.context_tokens for r in routes if r.provider == name), log)
        for name, provider in settings.providers.items()
        if name in named
    }


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
