"""The config and the store of a command."""

import asyncio
import os
import shutil
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from shlex import quote
from typing import TypeVar

import click

from cadenza.config import Settings, load_settings
from cadenza.config.load import CONFIG_NAME
from cadenza.control.account.accounts import get_owner
from cadenza.control.store.prepare import prepare_store, require_store
from cadenza.core.records import CLASSES, DEFAULT_CLASS, Owner
from cadenza.core.spans import Span
from cadenza.ledger.payments import ProviderPayment
from cadenza.store.address import open_store
from cadenza.store.store import Store
from cadenza.terminal.console import CONFIG, say

T = TypeVar("T")
ListPayments = Callable[[Settings, Span], Awaitable[list[ProviderPayment]]]  # of the provider of a part


def load_config(config: str | None) -> Settings:
    return load_settings(config, os.environ, Path.cwd())


def command_to_paste(config: Path | None, words: str) -> str:
    """A command for the working folder: the program as it was called, and the config if it is not found there."""
    called = sys.argv[0]
    program = called if "/" in called and called != shutil.which("cadenza") else "cadenza"
    is_found = config is None or config.absolute() == Path.cwd() / CONFIG_NAME
    return f"{program} {words}" if is_found else f"{program} {words} --config {quote(str(config))}"


def _read_option(ctx: click.Context, _option: click.Parameter, config: str | None) -> Settings | None:
    return None if ctx.resilient_parsing else load_config(config)  # while a shell completes, nothing is read


settings_option = click.option("--config", "settings", callback=_read_option, **CONFIG)


def usable_class(settings: Settings, asked: str | None) -> str:
    """The class that was asked for, if it has routes. The control plane refuses unknown names."""
    usable = [class_id for class_id in CLASSES if class_id in settings.classes]
    if asked in CLASSES and asked not in usable:
        raise ValueError(f"The class '{asked}' has no routes in the config: choose one of {', '.join(usable)}.")
    return asked or DEFAULT_CLASS


def with_store(settings: Settings, work: Callable[[Store], Awaitable[T]]) -> T:
    """Run `work` on the configured store. An SQLite store is created or migrated first."""
    return use_store(settings, work, lambda store: prepare_store(store, say_backup))


def read_store(settings: Settings, work: Callable[[Store], Awaitable[T]]) -> T:
    """Run `work`, which only reads, on the configured store. The store is neither created nor migrated."""
    return use_store(settings, work, require_store)


def with_owner(settings: Settings, email: str, work: Callable[[Store, Owner], Awaitable[T]]) -> T:
    """`with_store` for the account with this address."""
    return with_store(settings, _for_owner(email, work))


def read_owner(settings: Settings, email: str, work: Callable[[Store, Owner], Awaitable[T]]) -> T:
    """`read_store` for the account with this address."""
    return read_store(settings, _for_owner(email, work))


def _for_owner(email: str, work: Callable[[Store, Owner], Awaitable[T]]) -> Callable[[Store], Awaitable[T]]:
    async def find_and_work(store: Store) -> T:
        return await work(store, await get_owner(store, email))

    return find_and_work


def use_store(
    settings: Settings,
    work: Callable[[Store], Awaitable[T]],
    prepare: Callable[[Store], Awaitable[None]] | None = None,
) -> T:
    async def run() -> T:
        store = open_store(settings.store.url)
        try:
            if prepare:
                await prepare(store)
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


def say_backup(copy: Path) -> None:
    say(f"Before its migration, the store was copied to {copy}.")
