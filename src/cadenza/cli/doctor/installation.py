"""What `cadenza doctor` checks without a provider: secrets, store, region, keys, metrics, and what parts look at.

The store is neither created nor migrated. The one write to it changes nothing.
"""

import os
import shutil
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

from cadenza import clock, parts
from cadenza.config import Settings
from cadenza.config.settings import DEFAULT_PRICES, ServerSettings
from cadenza.control.price_changes import read_schedules, say_unused
from cadenza.control.store.prepare import require_store
from cadenza.fleet.presence import is_registered
from cadenza.fleet.shared import MEMORY
from cadenza.http.headers import is_local
from cadenza.store.address import open_store
from cadenza.store.migrate import schema_state
from cadenza.store.store import Store, StoreRefused, StoreUnavailable, check_write, compare_clocks
from cadenza.terminal.checks import Check

FREE_BYTES_MIN = 16 * 1024 * 1024  # a new store takes less than one; its write-ahead log may grow to this
CLOCKS_DIFFER_S = 1.0
IN_EACH_PROCESS = "rates and slots are counted in each process"
REGION = "account data and counters are stored in '{}', as the config says"
NO_REGION = "not stated. To show where account data and counters are stored, set [store] region."

T = TypeVar("T")


async def check_installation(settings: Settings) -> list[Check]:
    source = str(settings.source) if settings.source else "the built-in embedded default"
    return [
        Check("program", "ok", f"cadenza {version('cadenza')}"),
        Check("config", "ok", source),
        *(Check("secrets", "fault", missing, "Set it, then start again.") for missing in settings.missing_secrets),
        *(Check("model", "fault", missing) for missing in settings.missing_models),
        *(Check("extras", "fault", missing) for missing in settings.missing_extras),
        await check_store(settings.store.url),
        *await check_clock(settings.store.url),
        *(
            [Check("shared", "ok", IN_EACH_PROCESS)] if settings.shared_state.url == MEMORY else []
        ),  # else a part checks it
        Check("region", "ok", REGION.format(settings.store.region) if settings.store.region else NO_REGION),
        check_metrics(settings.server),
        *await check_prices(settings),
        *[check for part in parts.having("checks") for check in await part.load("checks").checks(settings)],
    ]


async def ask_store(settings: Settings, ask: Callable[[Store], Awaitable[T]]) -> T | None:
    """What `ask` returns; None without a usable store, which `check_store` reports."""
    store = open_store(settings.store.url)
    try:
        await require_store(store)
        return await ask(store)
    except (StoreUnavailable, StoreRefused, OSError):
        return None
    finally:
        await store.close()


async def has_other_store(settings: Settings, process: str | None) -> bool:
    """Whether a process that answered serves from another store than that of the config."""
    return process is not None and not await ask_store(settings, lambda store: is_registered(store, process))


async def check_store(url: str) -> Check:
    store = open_store(url)
    try:
        if store.path is not None and not store.path.exists():
            return _check_place(store.path)
        return await _check_existing(store)
    except StoreUnavailable as error:
        return _fault(error.problem, error.advice)
    except OSError as error:
        return _fault(f"{error.filename or store.path} cannot be used: {error.strerror}", "Check its owner and mode.")
    finally:
        await store.close()


async def _check_existing(store: Store) -> Check:
    found = await schema_state(store)
    found.refuse_unknown()
    if damage := await store.find_damage():
        todo = "Stop the service, keep the file, and put a backup in its place."
        return _fault(f"{store.path} is damaged: {damage}", todo)
    if found.state != "empty":
        await check_write(store)
    if found.is_usable:
        return Check("store", "ok", f"takes writes; schema {found.revision} ({found.state})")
    if store.is_shared_by_machines:
        return _fault(f"reachable, but its schema is {found.state}", "Run 'cadenza migrate'.")
    todo = "The next start migrates it, after a copy."
    return Check("store", "ok", f"reachable; schema {found.revision} ({found.state})", todo)


async def check_clock(url: str, clock: Callable[[], float] = time.time) -> list[Check]:
    """Whether the clocks of this machine and of Postgres agree. SQLite has the clock of this machine."""
    store = open_store(url)
    try:
        if not store.is_shared_by_machines:
            return []
        ahead_s, error_s = await compare_clocks(store, clock)
    except StoreUnavailable:
        return []  # `check_store` reports it
    finally:
        await store.close()
    side = "ahead of" if ahead_s > 0 else "behind"
    found = f"this machine is {abs(ahead_s):.3f} s {side} Postgres, give or take {error_s:.3f} s"
    if abs(ahead_s) - error_s <= CLOCKS_DIFFER_S:
        return [Check("clock", "ok", found)]
    todo = "Set both clocks by NTP: the expiry of keys and credit, heartbeats and reports depend on them."
    return [Check("clock", "warning", found, todo)]


def _check_place(path: Path) -> Check:
    """Whether the first start can create the store: the nearest folder that exists must take files."""
    folder = next(parent for parent in path.parents if parent.exists())
    if not folder.is_dir():
        return _fault(f"{folder} is not a folder", "Move it away, or give the store another path in [store].")
    if not os.access(folder, os.W_OK | os.X_OK):
        todo = "Let this user write there, or give the store another path in [store]."
        return _fault(f"this user cannot write to the folder {folder}", todo)
    if shutil.disk_usage(folder).free < FREE_BYTES_MIN:
        return _fault(f"the disk of {folder} is full", "Free space on it.")
    return Check("store", "ok", f"{path} does not exist yet", "The first start creates it.")


def _fault(found: str, todo: str) -> Check:
    return Check("store", "fault", found, todo or "The service refuses requests while its store is down.")


async def check_prices(settings: Settings) -> list[Check]:
    """Prices of the config that are not used, because changes of the price have begun to count."""
    now_ms = clock.now_ms()
    found = await ask_store(settings, lambda store: read_schedules(store, settings.prices, now_ms)) or {}
    unused = [say_unused(id_, settings.prices[id_], DEFAULT_PRICES[id_], prices) for id_, prices in found.items()]
    return [Check("prices", "warning", sentence) for sentence in unused if sentence]


def check_metrics(server: ServerSettings) -> Check:
    """A token protects /metrics. Without one it is open to this machine, and so to a proxy here that adds no header."""
    if server.metrics_token_env:
        return Check("metrics", "ok", f"open with the token in {server.metrics_token_env}")
    if is_local(server.host, []):
        return Check("metrics", "ok", "open to programs on this machine")
    todo = "Set metrics_token_env in [server]: behind a proxy on this machine, anyone may pass for a local program."
    return Check("metrics", "warning", f"the service listens on {server.host}, and /metrics has no token", todo)
