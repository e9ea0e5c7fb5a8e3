"""cadenza serve and cadenza migrate, and the screen that a start prints."""

import os
import secrets
import signal
import socket
import sys
from typing import Annotated

import msgspec
import typer
import uvloop

from cadenza.app import App, open_store
from cadenza.cli.console import Config, now_ms, out, say, settings_of
from cadenza.config import ConfigError, Settings, missing_secrets
from cadenza.control.accounts import create_account
from cadenza.control.keys import KeyOrder, create_key
from cadenza.core.money import NANO_PER_DOLLAR
from cadenza.core.records import DEFAULT_CLASS
from cadenza.observe import make_log
from cadenza.server.server import bind, serve_one
from cadenza.server.workers import Workers
from cadenza.store import accounts
from cadenza.store.database import Database
from cadenza.store.database import migrate as migrate_store

DEMO_EMAIL = "demo@localhost"
DEMO_CREDIT_NANO = 5 * NANO_PER_DOLLAR
EXAMPLE = '{"model": "auto", "messages": [{"role": "user", "content": "Say hello in five words."}]}'


class Demo(msgspec.Struct, frozen=True):
    """What a first start made, to be shown once."""

    password: str
    key: str


def serve(
    config: Config = None,
    host: Annotated[str | None, typer.Option(help="The address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="The port to listen on.")] = None,
) -> None:
    """Run the service."""
    settings = settings_of(config)
    if missing := missing_secrets(settings):
        raise ConfigError(missing, settings.source)
    listener = _bind(host or settings.server.host, settings.server.port if port is None else port)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is something that could be read again
    demo, has_accounts = uvloop.run(_prepare(settings))
    _print_screen(settings, listener, demo, has_accounts=has_accounts)
    if settings.server.workers == 1:
        serve_one(App(settings, make_log()), listener)
    else:
        os.environ["CADENZA_CONFIG"] = str(settings.source)
        sys.exit(Workers("cadenza.app:build_from_environment", settings.server.workers, listener).run())


def migrate(config: Config = None) -> None:
    """Bring the store's schema up to date."""
    settings = settings_of(config)

    async def run() -> str:
        db = Database(settings.store.url)
        try:
            return await migrate_store(db)
        finally:
            await db.close()

    say(f"The store's schema is at revision {uvloop.run(run())}.")


def _bind(host: str, port: int) -> socket.socket:
    try:
        return bind(host, port)
    except OSError as error:
        raise ValueError(
            f"cannot listen on {host}:{port}: {error.strerror}. Choose another with --port, or end what uses it."
        ) from None


async def _prepare(settings: Settings) -> tuple[Demo | None, bool]:
    """The store is made ready; the built-in default gets a demo account when it has none at all."""
    db = Database(settings.store.url)
    try:
        await open_store(db)
        async with db.read() as connection:
            has_accounts = await accounts.count(connection) > 0
        if has_accounts or settings.source is not None:
            return None, has_accounts
        password = secrets.token_urlsafe(12)
        await create_account(db, DEMO_EMAIL, password, DEMO_CREDIT_NANO, DEFAULT_CLASS, now_ms())
        key, _ = await create_key(db, DEMO_EMAIL, KeyOrder("demo"), now_ms())
        return Demo(password, key), True
    finally:
        await db.close()


def _print_screen(settings: Settings, listener: socket.socket, demo: Demo | None, *, has_accounts: bool) -> None:
    address, port = listener.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(address, f"[{address}]" if ":" in address else address)  # noqa: S104 shown, not bound
    base = f"http://{shown}:{port}/v1"
    lines = [("API", base), *_model_lines(settings)]
    if demo:
        lines += [
            ("Account", f"{DEMO_EMAIL}, with 5.00 dollars of credit; password {demo.password}"),
            ("Key", f"{demo.key}   (shown this once)"),
        ]
    elif has_accounts:
        lines.append(("Key", f"made before and not shown again; another: {_command()} key create --account EMAIL"))
        lines.append(("Accounts", f"{_command()} account list"))
    else:
        lines.append(("Account", f"none yet: {_command()} account create EMAIL --credit 5.00"))
    _show("")
    _show("Cadenza is running. Ctrl-C ends it.")
    _show("")
    for name, text in lines:
        _show(f"  {name:<9} {text}")
    _show("")
    _show("  Try it:")
    key = demo.key if demo else "$CADENZA_API_KEY"
    _show(
        f'  curl -s {base}/chat/completions -H "Authorization: Bearer {key}" '
        f"-H 'Content-Type: application/json' -d '{EXAMPLE}'"
    )
    _show("")
    sys.stdout.flush()


def _model_lines(settings: Settings) -> list[tuple[str, str]]:
    """Which model answers: a line for each set of classes that share a first route."""
    served: dict[str, list[str]] = {}
    for class_id, one in settings.classes.items():
        route = one.routes[0]
        where = "on this machine" if settings.providers[route.provider].kind == "embedded" else f"at {route.provider}"
        served.setdefault(f"{route.model} {where}", []).append(class_id)
    return [("Model", f"{model} answers for {', '.join(classes)}") for model, classes in served.items()]


def _command() -> str:
    return sys.argv[0] if "/" in sys.argv[0] and not sys.argv[0].startswith("/") else "cadenza"


def _show(line: str) -> None:
    say(line, out)
