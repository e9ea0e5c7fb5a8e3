"""A private service for as long as a command runs: each side of a comparison as a class, on a port of loopback.

It is the service itself, on a temporary store, without grounding and pages' settings. Its one account has the budget
as its credit, and a class costs what its provider charges, so that the ledger keeps to the budget: credit is held
before an upstream is asked, and a request beyond it is refused. Each side has a key of its own, which ends with it.
"""

import os
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from cadenza.app import App
from cadenza.cli.console import now_ms
from cadenza.config import Settings
from cadenza.config.settings import (
    ClassSettings,
    GroundingSettings,
    LimitSettings,
    PlatformSettings,
    ServerSettings,
    SharedStateSettings,
    StoreSettings,
)
from cadenza.control.account.accounts import create_account, get_account
from cadenza.control.keys import KeyOrder, create_key
from cadenza.control.store.prepare import prepare_store
from cadenza.core.records import CLASSES, DEFAULT_CLASS
from cadenza.evaluation.inspect_tasks import InspectEndpoint
from cadenza.evaluation.runner import AskedSide
from cadenza.http.connections import Connections
from cadenza.observe import make_log
from cadenza.server.acceptor import Acceptor
from cadenza.server.server import bind
from cadenza.store.address import open_store
from cadenza.store.tables.verdicts import SIDES, Side

EMAIL = "evaluation@localhost"
REQUESTS_PER_SECOND = 1000
CLASS_IDS: Mapping[Side, str] = dict(zip(SIDES, CLASSES, strict=False))  # a class stands for each side


def private_settings(
    settings: Settings, sides: Mapping[Side, AskedSide], character: str, folder: Path, concurrency: int
) -> Settings:
    """The settings of the service: the providers of the config, and nothing else of it."""
    classes = {CLASS_IDS[side]: one for side, one in sides.items()}
    grounding = GroundingSettings(
        msgspec.structs.replace(settings.grounding.search, engine="off"), attachments=False, memory=False
    )
    return msgspec.structs.replace(
        settings,
        source=None,
        server=ServerSettings(),
        store=StoreSettings(_store_url(folder)),
        shared_state=SharedStateSettings(),
        limits=LimitSettings(REQUESTS_PER_SECOND, REQUESTS_PER_SECOND, concurrency),
        prices={**settings.prices, **{class_id: one.counted for class_id, one in classes.items()}},
        classes={class_id: ClassSettings(one.routes, character) for class_id, one in classes.items()},
        grounding=grounding,
        platform=PlatformSettings(),
        mail=None,
        payments=None,
        fault_point=None,
    )


@asynccontextmanager
async def private_service(
    settings: Settings,
    sides: Mapping[Side, AskedSide],
    character: str,
    budget_nano: int,
    folder: Path,
    concurrency: int,
) -> AsyncIterator[list[InspectEndpoint]]:
    """Serve until the block ends: an endpoint for each side. `folder` is private and deleted by the caller."""
    given = private_settings(settings, sides, character, folder, concurrency)
    tokens = await _open_account(given, budget_nano)
    listener = bind("127.0.0.1", 0)
    with Path(os.devnull).open("w", encoding="utf-8") as nothing:  # noqa: ASYNC230 never waits
        app = App(given, make_log(nothing))
        if not await app.start():
            raise RuntimeError("the private service of an evaluation could not start")
        connections = Connections()
        acceptor = Acceptor(listener, app.serve, app.refuse, app.connection_settings, connections)
        try:
            base_url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
            yield [
                InspectEndpoint(
                    side=side, base_url=base_url, token=tokens[side], model=CLASS_IDS[side], cost=asked.cost
                )
                for side, asked in sides.items()
            ]
        finally:
            acceptor.close()
            for connection in connections:
                connection.abort()
            await app.stop()


async def _open_account(settings: Settings, budget_nano: int) -> dict[Side, str]:
    store = open_store(settings.store.url)
    try:
        await prepare_store(store)
        await create_account(store, EMAIL, secrets.token_urlsafe(24), budget_nano, DEFAULT_CLASS, now_ms())
        return {side: (await create_key(store, EMAIL, KeyOrder(side), now_ms()))[0] for side in SIDES}
    finally:
        await store.close()


async def read_spent(folder: Path, budget_nano: int) -> int:
    """What the requests have cost, once the service has stopped."""
    store = open_store(_store_url(folder))
    try:
        return budget_nano - (await get_account(store, EMAIL)).balance_nano
    finally:
        await store.close()


def _store_url(folder: Path) -> str:
    return f"sqlite:///{folder / 'private.db'}"
