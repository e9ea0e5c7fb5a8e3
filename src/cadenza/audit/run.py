"""An audit of a service of its own: it is started, used in every way, killed, started again, stopped and searched.

Everything that it makes is removed at the end, also after an error or Ctrl-C.
"""

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from cadenza.audit import api_senders, other_senders
from cadenza.audit.client import AuditClient
from cadenza.audit.findings import Expectation, Findings, SentNeedle
from cadenza.audit.needles import Needles
from cadenza.audit.places import search_bytes, search_folder, search_sqlite
from cadenza.audit.private_config import AuditedPlaces, make_config
from cadenza.audit.private_store import private_shared_state, private_store
from cadenza.audit.processes import search_machine, search_processes
from cadenza.audit.search import PlaceSearch, Searched
from cadenza.audit.servers import search_postgres, search_valkey
from cadenza.audit.service import AuditedService, AuditFolders
from cadenza.audit.stage import DOMAIN, AuditAccounts, AuditStage, Kept, Sender
from cadenza.audit.upstream import AuditUpstream, audit_upstream
from cadenza.config import Settings
from cadenza.control.account.accounts import create_account
from cadenza.control.keys import KeyLimits, KeyOrder, create_key, revoke_key
from cadenza.core.errors import ControlError
from cadenza.core.money import NANO_PER_DOLLAR
from cadenza.core.records import DEFAULT_CLASS
from cadenza.store.address import open_store
from cadenza.store.migrate import migrate, schema_state
from cadenza.store.store import Store

CREDIT_NANO = 100 * NANO_PER_DOLLAR
ONE_REQUEST = KeyLimits(requests_per_second=0.001, burst=1)
OK = 200
KILLED = "the service is killed in a stream"


async def audit_own_service(
    settings: Settings, raw: Mapping[str, Any], store_url: str | None, findings: Findings
) -> None:
    """Audit a service of its own, with the user's config. `store_url` is an empty database that the user names."""
    needles, began_s = Needles(), time.time()
    async with AsyncExitStack() as stack:
        folders = AuditFolders(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cadenza-audit-"))))
        folders.make()
        upstream = await stack.enter_async_context(audit_upstream())
        own_url = await stack.enter_async_context(private_store(settings.store.url, folders.store, store_url))
        shared_url = await stack.enter_async_context(private_shared_state(settings.shared_state.url))
        places = AuditedPlaces(upstream.url, own_url, shared_url, folders.inputs, folders.index / "index.db")
        config = make_config(raw, settings, places, needles)
        folders.config.write_text(config.toml)
        findings.notes += config.notes
        for name in config.secrets:
            findings.expect(name, Expectation(frozenset({Kept.ENVIRONMENT}), must_be_found=False))
        async with _opened(own_url) as store:
            if store_url:
                findings.notes.append(await _require_empty(store))
            await migrate(store, None)
            accounts = await open_accounts(store, needles, findings, CREDIT_NANO)
        service = AuditedService(folders, os.environ, config.variables)
        stack.push_async_callback(service.kill)
        audit = OwnAudit(needles, findings, folders, service, upstream, config.metrics_token)
        await audit.send(own_url, accounts, has_index=config.has_index)
        await audit.search(places, store.path, began_s)


async def _require_empty(store: Store) -> str:
    """Refuse a database that the user names and that is in use. What to do with it after the audit."""
    if (await schema_state(store)).revision:
        raise ControlError("The database of --store is in use: it has the tables of a store. Name one that is empty.")
    return "the database of --store has the tables of the audit now: drop it"


async def end_by_signal(work: Coroutine[None, None, None]) -> None:
    """Do the work. SIGTERM cancels it, so that everything is removed, as Ctrl-C does."""
    task = asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


@asynccontextmanager
async def _opened(url: str) -> AsyncIterator[Store]:
    """A store, which must be closed before its file is searched: reading it would drop the locks of a connection."""
    store = open_store(url)
    try:
        yield store
    finally:
        await store.close()


class OwnAudit:
    """One audit: its service is used, and then searched."""

    def __init__(
        self,
        needles: Needles,
        findings: Findings,
        folders: AuditFolders,
        service: AuditedService,
        upstream: AuditUpstream,
        metrics_token: str,
    ) -> None:
        self._needles = needles
        self._findings = findings
        self._folders = folders
        self._service = service
        self._upstream = upstream
        self._metrics_token = metrics_token

    async def send(self, store_url: str, accounts: AuditAccounts, *, has_index: bool) -> None:
        """Use the service in every way. At the end it runs, after it was killed in between."""
        async with _opened(store_url) as store:
            stage = AuditStage(
                AuditClient(0, accounts.key),
                accounts,
                store,
                upstream=self._upstream,
                service=self._service,
                folders=self._folders,
            )
            if has_index:
                await self._send(stage, other_senders.by_index())
            await self._service.start()
            stage.use_port(self._service.port)
            await self._send(stage, all_senders())
            await self._send(stage, other_senders.by_commands())
            stage.add_secrets(self._needles)
        await self._search_running()
        await self._kill(stage)
        await self._service.start()
        stage.use_port(self._service.port)
        await self._send(stage, other_senders.after_kill())
        self._findings.reached = self._upstream.counts
        if not any(one.status == OK for one in self._findings.sent):
            raise ControlError("The audited service answered no request, so the audit shows nothing.")

    async def _send(self, stage: AuditStage, senders: Iterable[Sender]) -> None:
        await send_all(stage, senders, self._needles, self._findings)

    async def _kill(self, stage: AuditStage) -> None:
        """End the service in the middle of a stream. What it leaves is searched before it is settled."""
        needle = self._needles.make(KILLED)
        try:
            async with api_senders.half_stream(stage, needle):
                await self._service.kill()
        except (TimeoutError, asyncio.IncompleteReadError):
            raise ControlError("The audited service began no stream, so it was not killed in one.") from None
        self._findings.sent.append(SentNeedle(KILLED, 0))
        left = search_folder(self._needles, "data folder, as the killed service left it", self._folders.store)
        self._findings.add(Kept.STORE, [left])

    async def _search_running(self) -> None:
        """What is only there while the service runs."""
        client = AuditClient(self._service.port, self._metrics_token)
        environment, *others = search_processes(self._needles, [self._service.pid], [self._folders.kept])
        self._findings.add(Kept.ENVIRONMENT, [environment])
        self._findings.add(None, [*others, await search_metrics(self._needles, client)])

    async def search(self, places: AuditedPlaces, path: Path | None, began_s: float) -> None:
        """Search everything, a part of it while the service runs. `path` is that of a SQLite store."""
        needles, folders, add = self._needles, self._folders, self._findings.add
        await self._search_running()
        if path and (await self._service.run("backup", "backup")).code:
            raise ControlError("'cadenza backup' failed in the audit.")
        if not places.shared_state_url.startswith("memory:"):
            add(None, await search_valkey(needles, places.shared_state_url))
        await self._service.stop()
        if path:
            add(Kept.STORE, search_sqlite(needles, path))
            add(Kept.STORE, [search_folder(needles, "data folder", folders.store)])
        else:
            add(Kept.STORE, await search_postgres(needles, places.store_url))
        add(Kept.LOG, [search_folder(needles, "log", folders.logs)])
        add(Kept.INDEX, [search_folder(needles, "index of local search", folders.index)])
        add(None, [search_folder(needles, f"{folder.name} folder", folder) for folder in folders.others])
        add(Kept.TRACES, [search_bytes(needles, "traces", self._upstream.spans)])
        add(None, search_machine(needles, began_s, folders.working))


def all_senders() -> Iterable[Sender]:
    """All that are sent to a service that stays up. Faults come last, so that healthy routes answer the others."""
    yield from api_senders.answered()
    yield from other_senders.on_pages()
    yield from other_senders.by_design()
    yield from other_senders.by_search()
    yield from api_senders.refused()
    yield from api_senders.broken()


async def send_all(stage: AuditStage, senders: Iterable[Sender], needles: Needles, findings: Findings) -> None:
    for sender in senders:
        try:
            reply = await sender.send(stage, needles.make(sender.name))
        except (OSError, TimeoutError, asyncio.IncompleteReadError):  # it is counted as no reply
            findings.add_sent(sender, 0)
        else:
            findings.add_sent(sender, reply.status if reply else None)


async def search_metrics(needles: Needles, client: AuditClient) -> Searched:
    """The text of /metrics. The key of the client is the token that opens it, if it needs one."""
    reply = await client.get("/metrics")
    search = PlaceSearch(needles, "/metrics")
    if reply.status == OK:
        search.add(reply.body)
    else:
        search.skip(f"the service answered {reply.status}")
    return search.result()


async def open_accounts(store: Store, needles: Needles, findings: Findings, credit_nano: int) -> AuditAccounts:
    """The account that sends, and another without credit. Neither password nor key may be found anywhere."""
    address = needles.make("the address of the account")
    findings.expect(address.name, Expectation(frozenset({Kept.STORE}), frozenset({"accounts", "acts"})))
    email, poor_email = f"{address.word}@{DOMAIN}", f"poor-{address.word}@{DOMAIN}"
    password = needles.make("the password of the account").word
    now_ms = AuditStage.now_ms()
    for one, given_nano in ((email, credit_nano), (poor_email, 0)):
        await create_account(store, one, password, given_nano, DEFAULT_CLASS, now_ms)

    async def make(order: KeyOrder, of: str = email) -> str:
        return (await create_key(store, of, order, now_ms))[0]

    accounts = AuditAccounts(
        email=email,
        poor_email=poor_email,
        password=password,
        key=await make(KeyOrder("audit")),
        key_without_scope=await make(KeyOrder("audit", scopes=("models",))),
        key_with_low_rate=await make(KeyOrder("audit", limits=ONE_REQUEST)),
        key_without_credit=await make(KeyOrder("audit"), poor_email),
        revoked_key=await make(KeyOrder("audit")),
    )
    await revoke_key(store, accounts.revoked_key, now_ms)
    return accounts
