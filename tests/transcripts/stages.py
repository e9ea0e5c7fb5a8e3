"""Where transcripts are played: in this process without a socket, and by a real `cadenza serve` on either store."""

import asyncio
import contextlib
import io
import json
import secrets
import tempfile
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import text

from cadenza.app import App
from cadenza.config import load_settings
from cadenza.core.codes import digest_key, display_prefix, make_key
from cadenza.http.connection import Connection
from cadenza.http.connections import Connections
from cadenza.ledger import credit
from cadenza.observe import make_log
from cadenza.store.address import open_store
from cadenza.store.statements import Statement
from cadenza.store.store import Store, Transaction
from cadenza.store.tables import accounts, keys
from cadenza.store.tables.accounts import Account
from cadenza.store.tables.keys import NewKey
from tests.migrated import copy_migrated_store
from tests.raw_client import RawClient
from tests.service import CREDIT_NANO, ServiceProcess, now_ms, wait_until
from tests.service_config import ServiceSpec

WAIT_S = 300.0
CHARGE = Statement(
    text(
        "SELECT e.amount_nano, e.completion_id, u.class_id, u.prompt_tokens, u.completion_tokens, u.cached_tokens,"
        " u.estimated FROM entries e JOIN usage u ON u.completion_id = e.completion_id"
        " WHERE e.kind = 'charge' AND u.request_id = :request_id"
    )
)
COLUMNS = (
    "amount_nano",
    "completion_id",
    "class_id",
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "estimated",
)
T = TypeVar("T")


class StoreStage:
    """The store of a service, with an account that has much credit. A thread with a loop reads and writes it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._loop = self.make_loop()
        self._store: Store
        self.key = ""

    def make_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.new_event_loop()

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        thread = threading.Thread(target=self._loop.run_forever, name="transcripts", daemon=True)
        thread.start()
        try:
            self._store = open_store(self._url)
            self.key = self.account_key(CREDIT_NANO)
            yield
            self.run(self._store.close())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join(WAIT_S)
            self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_S)

    def account_key(self, credit_nano: int) -> str:
        """The key of a new account."""
        account_id, key_id, secret = f"acct_{secrets.token_hex(8)}", f"key_{secrets.token_hex(8)}", make_key()

        def add(tx: Transaction) -> None:
            accounts.add(tx, Account(account_id, f"{account_id}@example.org", "forte", 0, 0, 1), "hash")
            if credit_nano:
                credit.grant(tx, account_id, credit_nano, "", 1)
            key = NewKey(key_id, account_id, "", display_prefix(secret), frozenset(), now_ms(), None)
            keys.add(tx, key, digest_key(secret.encode()))

        self.run(self._store.transact(add))
        return secret

    def send(self, raw: bytes) -> bytes:
        """What comes back on a connection of its own."""
        raise NotImplementedError

    def reload(self) -> None:
        """Read the config again, which makes every route healthy."""
        raise NotImplementedError

    def log_lines(self, request_id: str) -> list[dict[str, Any]]:
        """The lines of a request, its own among them."""
        raise NotImplementedError

    def charge(self, request_id: str) -> dict[str, Any] | None:
        rows = self.run(self._store.rows(CHARGE, {"request_id": request_id}))
        assert len(rows) <= 1, "charged twice"
        return dict(zip(COLUMNS, rows[0], strict=True)) if rows else None


class InProcess(StoreStage):
    """The service on the loop of this stage. A connection is a transport in memory."""

    def __init__(self, url: str, config: Path) -> None:
        super().__init__(url)
        self._log = io.StringIO()
        self._config = config
        self._app: App

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        with super().opened():
            self.run(self._start())
            yield
            self.run(self._app.stop())

    async def _start(self) -> None:
        settings = load_settings(str(self._config), {}, self._config.parent)
        self._app = App(settings, make_log(self._log))
        assert await self._app.start(), self._log.getvalue()
        self._connections = Connections()

    def reload(self) -> None:
        self.run(self._app.reload())

    def send(self, raw: bytes) -> bytes:
        return self.run(self._send(raw))

    async def _send(self, raw: bytes) -> bytes:
        connection = Connection(self._app.serve, self._app.connection_settings, self._connections)
        transport = MemoryTransport(connection)
        connection.connection_made(transport)
        connection.data_received(raw)
        async with asyncio.timeout(WAIT_S):
            await transport.closed.wait()
        connection.connection_lost(None)
        return b"".join(transport.written)

    def log_lines(self, request_id: str) -> list[dict[str, Any]]:
        return find_lines(self._log.getvalue(), request_id)


class MemoryTransport(asyncio.Transport):
    """Keeps what a connection writes, until it is closed."""

    def __init__(self, protocol: Connection) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.written: list[bytes] = []
        self.closed = asyncio.Event()
        self._protocol = protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def write_eof(self) -> None:
        """The end of the reply. The client has sent everything, and closes."""
        self.closed.set()

    def close(self) -> None:
        self.closed.set()

    def abort(self) -> None:
        self.closed.set()

    def is_closing(self) -> bool:
        return self.closed.is_set()

    def pause_reading(self) -> None:
        """All is there already."""

    def resume_reading(self) -> None:
        """All is there already."""


class Process(StoreStage):
    """A real `cadenza serve`, over TCP."""

    def __init__(self, url: str, config: Path) -> None:
        super().__init__(url)
        self._service = ServiceProcess(config.parent, config.parent / "log")

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        try:
            self._service.wait_until_ready()
            with super().opened():
                yield
            self._service.stop()
        finally:
            self._service.kill()

    def reload(self) -> None:
        self._service.reload()

    def send(self, raw: bytes) -> bytes:
        return RawClient(self._service.port, None).send_raw(raw)

    def log_lines(self, request_id: str) -> list[dict[str, Any]]:
        wait_until(lambda: bool(find_lines(self._service.output, request_id)), "the line of the request")
        return find_lines(self._service.output, request_id)


def find_lines(log: str, request_id: str) -> list[dict[str, Any]]:
    """The complete lines of a request, once its own is there."""
    lines = [json.loads(line) for line in log.split("\n")[:-1] if f'"{request_id}"' in line]
    return lines if any(line["event"] == "request" for line in lines) else []


@contextlib.contextmanager
def opened_stage(kind: type[InProcess] | type[Process], spec: ServiceSpec, url: str = "") -> Iterator[StoreStage]:
    """A service with this config, on this store or on a SQLite file of its own."""
    with tempfile.TemporaryDirectory(prefix="cadenza-transcripts-") as folder:
        config = Path(folder) / "cadenza.toml"
        if not url:
            copy_migrated_store(Path(folder) / "cadenza.db")
            url = f"sqlite:///{folder}/cadenza.db"
        config.write_text(spec.toml().replace(spec.store_url, url))
        stage = kind(url, config)
        with stage.opened():
            yield stage
