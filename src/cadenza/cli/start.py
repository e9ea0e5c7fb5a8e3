"""The start of `cadenza serve`: take the port, open the store, print the screen, log one line, then serve.

A port that is taken and a config with mistakes are found before anything is created. The first start on the built-in
default creates a demo account; its key is printed once and stored only as a hash. Such secrets are printed only if
standard output is a terminal: otherwise they would stay in the journal of systemd, or in the log of a container. Then
they are not made, and the screen names the commands that make them. Parts add lines of their own.
"""

import os
import signal
import socket
import sys
from collections.abc import Mapping
from functools import partial
from importlib.metadata import version
from urllib.parse import urlsplit

import click
import msgspec
import uvloop

from cadenza import parts
from cadenza.app import WORKERS_FOLDER, App, log_replaced
from cadenza.config import ConfigError, Settings
from cadenza.config.class_records import resolve_classes
from cadenza.config.kinds import BUILT_IN, OF_PARTS, kind_of
from cadenza.control.account.accounts import create_account, find_accounts, get_owner
from cadenza.control.class_versions import ServingProcess
from cadenza.control.keys import KeyOrder, create_key
from cadenza.control.store.prepare import prepare_store
from cadenza.core.classes import ClassState
from cadenza.core.money import NANO_PER_DOLLAR, format_dollars
from cadenza.core.records import DEFAULT_CLASS
from cadenza.observe import Log, catch_strays, make_log
from cadenza.observe.worker_metrics import workers_folder
from cadenza.process import protect_memory, refused_limits
from cadenza.server.server import bind, serve_one
from cadenza.server.workers import Workers
from cadenza.store.address import open_store
from cadenza.store.sqlite.lost_commits import find_lost_commits
from cadenza.store.store import Store
from cadenza.store.tables.accounts import AccountsFound
from cadenza.terminal.checks import Lines, OfferModel, StartFacts
from cadenza.terminal.configured import command_to_paste, load_config, say_backup
from cadenza.terminal.console import now_ms, say

DEMO_EMAIL = "demo@localhost"
DEMO_CREDIT_NANO = 5 * NANO_PER_DOLLAR
QUESTION = "Explain photosynthesis in one sentence."  # the embedded model answers it well, 20 times out of 20
CONFIG_EXIT = 78  # EX_CONFIG of sysexits.h: a supervisor need not try again
EXAMPLE = f'{{"model": "auto", "messages": [{{"role": "user", "content": "{QUESTION}"}}], "max_tokens": 60}}'


class Prepared(msgspec.Struct, frozen=True):
    """What a start found in the store, and the secrets that it made."""

    accounts: AccountsFound
    has_new_demo: bool  # a first start created the demo account
    key: str | None  # of the demo account, for a terminal
    classes: dict[str, ClassState]  # what is served
    lines: Lines  # of parts


def start(config: str | None, host: str | None, port: int | None) -> None:
    """Run the service of a config file. A mistake in that file has an exit code of its own."""
    try:
        settings = load_config(config)
        if settings.lacks_model and sys.stdin.isatty() and _offer_model():
            settings = load_config(config)
        run_service(settings, host or settings.server.host, settings.server.port if port is None else port)
    except ConfigError as error:
        say(f"cadenza: {error}")
        sys.exit(CONFIG_EXIT)


def _offer_model() -> bool:
    """Whether the built-in model was missing, and is installed now."""
    part = OF_PARTS[BUILT_IN]
    if not part.is_installed:
        return False
    offer: OfferModel = part.load("commands").offer_model
    return offer()


def run_service(settings: Settings, host: str, port: int) -> None:
    settings.require_complete()
    protect_memory()
    listener = _bind(host, port)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the service can reload
    log = make_log()
    catch_strays(log)
    base_url = _base_url(listener)
    _print_screen(settings, base_url, uvloop.run(_prepare(settings, base_url, log, at_terminal=sys.stdout.isatty())))
    log.info("starting", **start_facts(settings, listener))
    if refused := refused_limits():
        log.warning("the system refuses limits of a process", limits=refused)
    if settings.server.workers == 1:
        serve_one(App(settings, log), listener)
    else:
        os.environ["CADENZA_CONFIG"] = str(settings.source)
        with workers_folder() as folder:
            os.environ[WORKERS_FOLDER] = str(folder)
            exit_code = Workers("cadenza.app:build_from_environment", settings.server.workers, listener, log).run()
        sys.exit(exit_code)


def start_facts(settings: Settings, listener: socket.socket) -> dict[str, str | int]:
    """What the log says about a start."""
    host, port = listener.getsockname()[:2]
    return {
        "version": version("cadenza"),
        "pid": os.getpid(),
        "store": without_credentials(settings.store.url),
        "workers": settings.server.workers,
        "address": f"{_bracketed(host)}:{port}",
        "config": str(settings.source) if settings.source else "built-in",
    }


def without_credentials(url: str) -> str:
    """Scheme, host and path of a store's address; user, password and query are left out."""
    address = urlsplit(url)
    return f"{address.scheme}://{address.netloc.rpartition('@')[2]}{address.path}"


def _bind(host: str, port: int) -> socket.socket:
    try:
        return bind(host, port)
    except OSError as error:
        raise ValueError(
            f"cannot listen on {host}:{port}: {error.strerror}. "
            "Choose another port with --port, or stop the program that uses it."
        ) from None


async def _prepare(settings: Settings, base_url: str, log: Log, *, at_terminal: bool) -> Prepared:
    """Open the store; create the demo account if the built-in default has no account."""
    store = open_store(settings.store.url)
    if store.path and (lost := find_lost_commits(store.path)):
        log.error("the store has lost commits", reason=lost.reason, todo=lost.todo)
    try:
        await prepare_store(store, say_backup)
        found, key = await find_accounts(store, besides=DEMO_EMAIL), None
        demo = None if found.has_any or settings.source else DEMO_EMAIL
        if demo:
            key = await _make_demo(store, with_key=at_terminal)
        classes = await resolve_classes(store, settings, ServingProcess(replaced=partial(log_replaced, log)))
        begun = StartFacts(
            settings=settings, store=store, base_url=base_url, accounts=found, demo=demo, at_terminal=at_terminal
        )
        lines = [line for part in parts.having("screen") for line in await part.load("screen").screen(begun)]
        return Prepared(found, demo is not None, key, classes, lines)
    finally:
        await store.close()


async def _make_demo(store: Store, *, with_key: bool) -> str | None:
    """The key, if it has one."""
    await create_account(store, DEMO_EMAIL, DEMO_CREDIT_NANO, DEFAULT_CLASS, now_ms())
    if not with_key:
        return None
    key, _ = await create_key(store, await get_owner(store, DEMO_EMAIL), KeyOrder("demo"), now_ms())
    return key


def _print_screen(settings: Settings, base_url: str, found: Prepared) -> None:
    lines = [("API", base_url), *_model_lines(settings, found.classes)]
    command, key = partial(command_to_paste, settings.source), found.key or "$CADENZA_API_KEY"
    credit = f"{DEMO_EMAIL}, with {format_dollars(DEMO_CREDIT_NANO)} dollars of credit"
    if found.has_new_demo:
        create = f"none yet; to create one: {command(f'key create --account {DEMO_EMAIL}')}"
        lines += [("Account", credit), ("Key", f"{found.key}   (shown only this once)" if found.key else create)]
    elif found.accounts.has_any:
        lines.append(("Key", f"to create a new one: {command('key create --account EMAIL')}"))
        lines.append(("Accounts", command("account list")))
    else:
        lines.append(("Account", f"none yet; to create one: {command('account create EMAIL --credit 5.00')}"))
    click.echo("\nCadenza is running. Press Ctrl-C to stop it.\n")
    for name, text in [*lines, *found.lines]:
        click.echo(f"  {name:<9} {text}")
    click.echo(
        f"\n  Try it:\n"
        f'  curl -s {base_url}/chat/completions -H "Authorization: Bearer {key}" '
        f"-H 'Content-Type: application/json' -d '{EXAMPLE}'\n"
    )


def _model_lines(settings: Settings, classes: Mapping[str, ClassState]) -> list[tuple[str, str]]:
    """Which model answers: one line for each set of classes with the same first route."""
    served: dict[str, list[str]] = {}
    for class_id, state in classes.items():
        route = state.version.routes[0]
        where = (
            "on this machine" if kind_of(settings.providers[route.provider].kind).is_local else f"at {route.provider}"
        )
        served.setdefault(f"{route.model} {where}", []).append(class_id)
    lines = [("Model", f"{model} answers for {', '.join(classes)}") for model, classes in served.items()]
    hint = ("", f"It is small and often wrong. To use a better model: {command_to_paste(None, 'init')}")
    return lines if settings.source else [*lines, hint]


def _base_url(listener: socket.socket) -> str:
    """The address for a client on this machine."""
    host, port = listener.getsockname()[:2]
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 compared, not bound
    return f"http://{_bracketed(reachable)}:{port}/v1"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
