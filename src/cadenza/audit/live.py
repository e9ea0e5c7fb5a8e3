"""An audit of the service that runs, through an account that is erased at the end.

Some needles reach the real providers, and cost credit of that account. The real store, log and folders are searched
twice: with what is stored by design, and again when the account is erased, after which none of it may be there.
"""

import asyncio
import contextlib
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from cadenza.audit.client import AuditClient
from cadenza.audit.findings import Findings
from cadenza.audit.needles import Needles
from cadenza.audit.places import search_bytes, search_file, search_folder, search_sqlite
from cadenza.audit.processes import search_machine, search_processes
from cadenza.audit.run import OK, all_senders, open_accounts, search_metrics, send_all
from cadenza.audit.search import PlaceSearch, Searched
from cadenza.audit.servers import search_postgres, search_valkey
from cadenza.audit.stage import AuditAccounts, AuditStage, Kept
from cadenza.config import Settings
from cadenza.control.account.accounts import suspend_account
from cadenza.control.account.erasure import erase_account
from cadenza.control.store.prepare import require_store
from cadenza.core.errors import ControlError
from cadenza.core.money import NANO_PER_DOLLAR
from cadenza.core.records import COMMAND_LINE
from cadenza.fleet.presence import local_pids
from cadenza.store.address import open_store
from cadenza.store.store import Store

CREDIT_NANO = NANO_PER_DOLLAR // 2
ERASE_TRIES = 20
ERASE_PAUSE_S = 0.5
JOURNAL_S = 60.0
ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 compared, not bound
NO_LOG = "name it with --log FILE or --journal UNIT"


class LiveOptions(msgspec.Struct, frozen=True):
    """Where the service listens, if not as in the config, and where its log is."""

    url: str | None = None
    logs: tuple[Path, ...] = ()
    journal: str | None = None


async def audit_running_service(settings: Settings, options: LiveOptions, findings: Findings) -> None:
    host, port = _address(settings, options.url)
    try:
        ready = await AuditClient(port, host=host).get("/readyz")
    except (OSError, TimeoutError):
        raise ControlError(f"No service answers at {host}:{port}. Start it, or name its address with --url.") from None
    if ready.status != OK:
        raise ControlError(f"The service at {host}:{port} is not ready. See its log, and /readyz.")
    await LiveAudit(settings, options, findings).run(host, port)


class LiveAudit:
    """One audit of the service that runs."""

    def __init__(self, settings: Settings, options: LiveOptions, findings: Findings) -> None:
        self._settings = settings
        self._options = options
        self._findings = findings
        self._needles = Needles()
        self._began_s = time.time()
        self._pids: list[int] = []
        self._store_files: list[Path] = []  # of SQLite, with its backups

    async def run(self, host: str, port: int) -> None:
        async with self._accounts() as accounts:
            async with _opened(self._settings) as store:
                stage = AuditStage(AuditClient(port, accounts.key, host), accounts, store)
                live = (sender for sender in all_senders() if sender.is_live)
                await send_all(stage, live, self._needles, self._findings)
                self._pids = await local_pids(store)
            stage.add_secrets(self._needles)
            metrics = AuditClient(port, self._settings.server.metrics_token or "", host)
            self._findings.add(None, [await search_metrics(self._needles, metrics)])
            known = [*self._store_files, *self._options.logs]
            self._findings.add(None, search_processes(self._needles, self._pids, known))
            await self._search_store()
            await asyncio.to_thread(self._search_files)
        self._findings.expect_erased()
        await self._search_store()

    @asynccontextmanager
    async def _accounts(self) -> AsyncIterator[AuditAccounts]:
        async with _opened(self._settings) as store:
            if path := store.path:
                beside = path.parent.glob(f"{path.stem}*{path.suffix}*")  # its log and its backups
                self._store_files = list(dict.fromkeys([path, *beside]))
            accounts = await open_accounts(store, self._needles, self._findings, CREDIT_NANO)
        try:
            yield accounts
        finally:
            async with _opened(self._settings) as store:
                await _erase(store, accounts.email)
                await _erase(store, accounts.poor_email)

    async def _search_store(self) -> None:
        settings, needles = self._settings, self._needles
        if self._store_files:
            found = await asyncio.to_thread(search_sqlite, needles, self._store_files[0])
        else:
            found = await search_postgres(needles, settings.store.url)
        self._findings.add(Kept.STORE, found)
        if not settings.shared_state.url.startswith("memory:"):
            self._findings.add(None, await search_valkey(needles, settings.shared_state.url))

    def _search_files(self) -> None:
        needles, since_s, add = self._needles, self._began_s, self._findings.add
        add(Kept.LOG, self._search_logs())
        known = [*self._store_files, *self._options.logs]
        working = list(filter(None, dict.fromkeys(map(_working_folder, self._pids))))
        folders = [Path(tempfile.gettempdir()), Path.home() / ".cache", *working]
        folders += [path.parent for path in self._store_files[:1]]
        for folder in dict.fromkeys(folders):
            if folder == folder.parent:
                self._findings.notes.append(
                    f"the working folder of the service is {folder}, which is not searched whole"
                )
            else:
                add(None, [search_folder(needles, f"folder {folder}", folder, since_s, known)])
        add(None, search_machine(needles, since_s, working[0] if working else Path.cwd(), leave_out=known))

    def _search_logs(self) -> list[Searched]:
        needles, options = self._needles, self._options
        found = [
            search_folder(needles, f"log {path}", path, self._began_s)
            if path.is_dir()
            else search_file(needles, f"log {path}", path)
            for path in options.logs
        ]
        if options.journal:
            found.append(search_bytes(needles, f"journal of {options.journal}", self._read_journal(options.journal)))
        if not found:
            search = PlaceSearch(needles, "log")
            search.skip(NO_LOG)
            found.append(search.result())
        return found

    def _read_journal(self, unit: str) -> bytes:
        command = ["journalctl", "--unit", unit, "--since", f"@{int(self._began_s)}", "--output", "cat", "--no-pager"]
        try:
            return subprocess.run(command, capture_output=True, timeout=JOURNAL_S, check=True).stdout  # noqa: S603
        except (OSError, subprocess.SubprocessError):
            raise ControlError(f"The journal of {unit} cannot be read: run the audit as root.") from None


def _address(settings: Settings, url: str | None) -> tuple[str, int]:
    if url is None:
        return ANYWHERE.get(settings.server.host, settings.server.host), settings.server.port
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise ValueError("--url is the address of the service itself, like http://127.0.0.1:8080.")
    return parts.hostname, parts.port or 80


@asynccontextmanager
async def _opened(settings: Settings) -> AsyncIterator[Store]:
    store = open_store(settings.store.url)
    try:
        await require_store(store)
        yield store
    finally:
        await store.close()


async def _erase(store: Store, email: str) -> None:
    """Erase an account. What its last requests hold is settled first."""
    now_ms = AuditStage.now_ms()
    await suspend_account(store, email, COMMAND_LINE, now_ms)
    for _ in range(ERASE_TRIES):
        with contextlib.suppress(ControlError):
            await erase_account(store, email, COMMAND_LINE, now_ms)
            return
        await asyncio.sleep(ERASE_PAUSE_S)
    raise ControlError(f"The account of the audit could not be erased. Run 'cadenza account erase {email}'.")


def _working_folder(pid: int) -> Path | None:
    try:
        return Path(f"/proc/{pid}/cwd").readlink()
    except OSError:
        return None
