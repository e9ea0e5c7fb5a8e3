"""An audit: a service is started, used in every way, killed, started again, stopped and searched.

Everything that it makes is removed at the end, also after an error or Ctrl-C.
"""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

from cadenza import clock, parts
from cadenza.config import Settings
from cadenza.config.write import write_config
from cadenza.control.account.accounts import create_account, get_owner
from cadenza.control.keys import KeyOrder, create_key, revoke_key
from cadenza.core.errors import ControlError
from cadenza.core.money import NANO_PER_DOLLAR
from cadenza.core.records import COMMAND_LINE, DEFAULT_CLASS
from cadenza.parts.retention import cases, places
from cadenza.parts.retention.canaries import CanarySet
from cadenza.parts.retention.case import Case, RetentionFixture, send_case
from cadenza.parts.retention.client import CaseClient
from cadenza.parts.retention.config import PrivateConfig
from cadenza.parts.retention.report import Findings
from cadenza.parts.retention.search import PlaceSearch
from cadenza.parts.retention.service import AuditedService
from cadenza.parts.retention.upstream import audit_upstream
from cadenza.store.address import open_store
from cadenza.store.contents import StoredValue
from cadenza.store.migrate import migrate

KILLED = "the service is killed in a stream"
ADDRESS = "the address of the account"

Contents = Callable[[float], AsyncIterator[StoredValue]]  # of a server, changed in the last so many seconds


async def run_audit(settings: Settings, given: Mapping[str, Any], findings: Findings) -> None:
    """Audit a service with the user's config; `given` is its file as it was parsed."""
    store_url, shared_url, canaries = str(settings.store.url), str(settings.shared_state.url), CanarySet()
    servers = list[Contents]()
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="cadenza-retention-"))
        service, upstream = AuditedService(Path(folder)), await stack.enter_async_context(audit_upstream())
        if store_url.startswith("sqlite:"):
            store_url = f"sqlite:///{service.store / 'cadenza.db'}"
        store_url, shared_url = [await _own_database(url, stack, servers) for url in (store_url, shared_url)]
        config = PrivateConfig(given, settings, canaries)
        tables = config.tables(upstream.url, store_url, shared_url)
        service.configure(write_config(tables), config.variables)
        stack.push_async_callback(service.kill)
        findings.notes += config.notes
        findings.kept |= {name: {places.ENVIRONMENT} for name in config.secrets}
        fixture = RetentionFixture(service, upstream, open_store(store_url), canaries)
        metrics = CaseClient(config.variables.get(tables["server"].get("metrics_token_env"), ""))
        try:
            await _make_accounts(fixture)
            findings.add_sent(ADDRESS, None)
            await _send_all(fixture, findings)
        finally:
            await fixture.store.close()  # before its file is read: closing that would drop the locks of the connection
        await _search_running(fixture, findings, metrics)
        await _kill(fixture, findings)
        await _send(fixture, findings, {"after the kill: a message": cases.PLAIN_CHAT})
        await _search_running(fixture, findings, metrics)
        if store_url.startswith("sqlite:"):
            await service.run("backup")
        await service.stop()
        for contents in servers:
            age_s = time.time() - canaries.made_s + places.CLOCKS_S
            findings.searches += await places.search_server(canaries, contents(age_s))
        _search_files(fixture, findings)


async def _own_database(url: str, stack: AsyncExitStack, servers: list[Contents]) -> str:
    """The address of an empty database of the same server, which is searched later. A file or memory has no server."""
    part = parts.find(url)
    if not part:
        return url
    contents = part.load("contents")
    own_url: str = await stack.enter_async_context(contents.empty_database(url))
    servers.append(partial(contents.all_contents, own_url))
    return own_url


async def _make_accounts(fixture: RetentionFixture) -> None:
    """An account that sends, and another without credit. No key may be found anywhere."""
    store, canaries, now_ms = fixture.store, fixture.canaries, clock.now_ms()
    await migrate(store, None)
    fixture.email = f"{canaries.make(ADDRESS).word}@audit.invalid"
    poor_email = f"poor-{fixture.email}"
    for email, dollars in ((fixture.email, 100), (poor_email, 0)):
        await create_account(store, email, dollars * NANO_PER_DOLLAR, DEFAULT_CLASS, now_ms)
    orders = {
        "key": (fixture.email, KeyOrder("audit")),
        "revoked key": (fixture.email, KeyOrder("audit")),
        "key without scope": (fixture.email, KeyOrder("audit", scopes=("models",))),
        "rate": (fixture.email, KeyOrder("audit", requests_per_second=0.001, burst=1)),
        "credit": (poor_email, KeyOrder("audit")),
    }
    keys = {
        name: (await create_key(store, await get_owner(store, email), order, now_ms))[0]
        for name, (email, order) in orders.items()
    }
    await revoke_key(store, COMMAND_LINE, keys["revoked key"], now_ms)
    canaries.add_secret("the API key", keys["key"])
    for part in parts.having("cases"):
        if prepare := part.load("cases").AUDIT.prepare:
            await prepare(fixture)
    fixture.clients = {name: CaseClient(key) for name, key in {**keys, "browser": "", "no key": ""}.items()}


async def _start(fixture: RetentionFixture) -> None:
    await fixture.service.start()
    for client in fixture.clients.values():
        client.port = fixture.service.port


async def _send_all(fixture: RetentionFixture, findings: Findings) -> None:
    await _start(fixture)
    await _send(fixture, findings, cases.all_cases())
    if 200 not in findings.sent.values():
        raise ControlError("The audited service answered no request, so the audit shows nothing.")
    for cookie in fixture.clients["browser"].cookies.values():
        fixture.canaries.add_secret("a session cookie", cookie)
    findings.received = fixture.upstream.received


async def _send(fixture: RetentionFixture, findings: Findings, some: Mapping[str, Case]) -> None:
    for name, case in some.items():
        try:
            status = await send_case(case, fixture, fixture.canaries.make(name))
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            status = 0
        findings.add_sent(name, status)


async def _kill(fixture: RetentionFixture, findings: Findings) -> None:
    """End the service in the middle of a stream, search what it leaves, and start it again."""
    try:
        async with cases.half_stream(fixture, fixture.canaries.make(KILLED)):
            await fixture.service.kill()
    except (TimeoutError, asyncio.IncompleteReadError):
        raise ControlError("The audited service began no stream, so it was not killed in one.") from None
    findings.add_sent(KILLED, 0)
    findings.searches.append(places.search_folder(fixture.canaries, places.SQLITE_FILES, fixture.service.store))
    await _start(fixture)


async def _search_running(fixture: RetentionFixture, findings: Findings, metrics: CaseClient) -> None:
    """What is only there while the service runs. `metrics` has the token that opens /metrics."""
    metrics.port = fixture.service.port
    reply = await metrics.send("GET", "/metrics")
    search = PlaceSearch(fixture.canaries, "/metrics")
    search.add(reply.body)
    if reply.status != 200:
        search.skip(f"the service answered {reply.status}")
    processes = places.search_processes(fixture.canaries, fixture.service.pid, fixture.service.kept)
    findings.searches += [search, *processes]


def _search_files(fixture: RetentionFixture, findings: Findings) -> None:
    """What is left when the service has stopped."""
    canaries, service = fixture.canaries, fixture.service
    traces = PlaceSearch(canaries, places.TRACES)
    traces.add(b"\0".join(fixture.upstream.spans))
    folders = {places.LOG: service.logs}
    folders |= {f"{folder.name} folder": folder for folder in service.others}
    findings.searches += [traces, *places.search_sqlite(canaries, service.store)]
    findings.searches += [places.search_folder(canaries, place, folder) for place, folder in folders.items()]
