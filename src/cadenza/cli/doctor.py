"""cadenza doctor: looks at everything that a start needs, and says what to do about each fault."""

from typing import Literal

import msgspec
import typer
import uvloop
from rich.table import Table
from rich.text import Text

from cadenza.app import build_upstreams
from cadenza.cli.console import AsJson, Config, out, print_list, settings_of
from cadenza.config import ConfigError, Settings, missing_secrets
from cadenza.observe import make_log
from cadenza.store.database import Database, StoreUnavailable, schema_state
from cadenza.upstreams.base import Probe, Upstream

MARKS = {"ok": "[green]ok[/]", "warning": "[yellow]look[/]", "fault": "[red]fault[/]"}


class Check(msgspec.Struct, frozen=True):
    """One thing looked at: how it is, and what to do where it is not well."""

    check: str
    state: Literal["ok", "warning", "fault"]
    found: str
    todo: str = ""


def doctor(as_json: AsJson = False, config: Config = None) -> None:
    """Check config, store, region, retention and routes."""
    try:
        settings = settings_of(config)
    except ConfigError as error:
        checks = [Check("config", "fault", problem, "Mend it in the config file.") for problem in error.problems]
    else:
        checks = uvloop.run(_examine(settings))
    if as_json:
        print_list([msgspec.structs.asdict(check) for check in checks], (), as_json=True)
    else:
        _print(checks)
    if any(check.state == "fault" for check in checks):
        raise typer.Exit(1)


async def _examine(settings: Settings) -> list[Check]:
    source = str(settings.source) if settings.source else "the built-in embedded default"
    checks = [Check("config", "ok", source)]
    checks += [Check("secrets", "fault", missing, "Set it, then start again.") for missing in missing_secrets(settings)]
    checks.append(await _check_store(settings))
    checks.append(Check("region", "ok", f"account data and counters are kept in '{settings.store.region}'"))
    checks += [_check_retention(name, provider.dialect) for name, provider in settings.providers.items()]
    for name, upstream in build_upstreams(settings, make_log()).items():
        checks += _check_routes(settings, name, await _probe(upstream))
    return checks


async def _check_store(settings: Settings) -> Check:
    db = Database(settings.store.url)
    try:
        if db.path is not None and not db.path.exists():
            return Check("store", "ok", f"{db.path} does not exist yet", "The first start makes it.")
        found = await schema_state(db)
    except StoreUnavailable as error:
        return Check("store", "fault", str(error), "The service refuses requests while its store is down.")
    finally:
        await db.close()
    if found.state == "ahead":
        todo = "Run the newer program that made it."
        return Check("store", "fault", f"its schema, {found.revision}, is newer than this program", todo)
    if found.state == "current" or db.is_sqlite:
        return Check("store", "ok", f"answers; schema {found.revision} ({found.state})")
    return Check("store", "fault", f"answers, but its schema is {found.state}", "Run 'cadenza migrate'.")


def _check_retention(name: str, dialect: str) -> Check:
    switch = {"openai": "; each request says store: false", "openrouter": "; each request says zdr and deny"}
    return Check("retention", "ok", f"{name}: zero, by its configuration{switch.get(dialect, '')}")


async def _probe(upstream: Upstream) -> Probe:
    try:
        return await upstream.probe()
    finally:
        await upstream.stop()


def _check_routes(settings: Settings, provider: str, probe: Probe) -> list[Check]:
    """A line for each route of the provider: is it reachable, and does it know the model?"""
    checks = []
    for class_id, one in settings.classes.items():
        for route in one.routes:
            if route.provider != provider:
                continue
            what = f"{class_id} -> {provider}: {route.model}"
            if not probe.reachable:
                todo = "Check base_url, the key in the environment, and that the endpoint runs."
                checks.append(Check("route", "fault", f"{what}: {probe.detail}", todo))
            elif probe.models and route.model not in probe.models:
                known = ", ".join(probe.models[:5])
                checks.append(Check("route", "warning", f"{what}: not among the models it names", f"It has {known}."))
            else:
                checks.append(Check("route", "ok", f"{what}: {probe.detail}"))
    return checks


def _print(checks: list[Check]) -> None:
    table = Table("", "check", "found", "what to do", box=None, header_style="bold", pad_edge=False)
    for check in checks:
        table.add_row(MARKS[check.state], check.check, Text(check.found), Text(check.todo))
    out.print(table)
