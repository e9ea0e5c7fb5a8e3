"""What the senders of an audit work with, and the record of one sender."""

import time
from collections.abc import Awaitable, Callable
from enum import Enum

import msgspec

from cadenza.audit.client import AuditClient, AuditReply
from cadenza.audit.needles import SECRET_CHARACTERS_MIN, AuditNeedle, Needles
from cadenza.audit.service import AuditedService, AuditFolders
from cadenza.audit.upstream import GOOD, AuditUpstream, PlayReply
from cadenza.store.store import Store

DOMAIN = "audit.invalid"  # a name that can never be registered


class Kept(Enum):
    """Where a needle may be found, because it is stored by design."""

    STORE = "store"
    LOG = "log"
    TRACES = "traces"
    INDEX = "index"
    ENVIRONMENT = "environment"
    REMAINS = "remains"  # files of Postgres, which keep deleted rows until they are vacuumed or recycled


class AuditAccounts(msgspec.Struct, frozen=True):
    """The account that sends, and keys that are refused for one reason each."""

    email: str
    poor_email: str  # of another account, without credit
    password: str
    key: str
    key_without_scope: str
    key_with_low_rate: str  # one request in a long time
    key_without_credit: str
    revoked_key: str


class AuditStage:
    """The service, as a sender sees it. A running service that is audited has the first three things only."""

    def __init__(
        self,
        client: AuditClient,
        accounts: AuditAccounts,
        store: Store,
        *,
        upstream: AuditUpstream | None = None,
        service: AuditedService | None = None,
        folders: AuditFolders | None = None,
    ) -> None:
        self.client = client
        self.accounts = accounts
        self.store = store
        self.browser = AuditClient(client.port, host=client.host)
        self._upstream = upstream
        self._service = service
        self._folders = folders

    @property
    def upstream(self) -> AuditUpstream:
        assert self._upstream
        return self._upstream

    @property
    def service(self) -> AuditedService:
        assert self._service
        return self._service

    @property
    def folders(self) -> AuditFolders:
        assert self._folders
        return self._folders

    def play(self, needle: AuditNeedle, reply: PlayReply = GOOD) -> None:
        """Have the upstream answer like this from now on. A real one cannot be scripted."""
        if self._upstream:
            self._upstream.play(reply, needle.text)

    def client_with(self, key: str) -> AuditClient:
        return AuditClient(self.client.port, key, self.client.host)

    def use_port(self, port: int) -> None:
        """The service listens on another port since it was started."""
        self.client.port = self.browser.port = port

    def add_secrets(self, needles: Needles) -> None:
        """Search for the API key and the cookies of the browser too: they are credentials."""
        needles.add_secret("the API key", self.accounts.key)
        for cookie in self.browser.cookies:
            if len(cookie) >= SECRET_CHARACTERS_MIN:
                needles.add_secret("a session cookie", cookie)

    @staticmethod
    def now_ms() -> int:
        return time.time_ns() // 1_000_000


Send = Callable[[AuditStage, AuditNeedle], Awaitable[AuditReply | None]]


class Sender(msgspec.Struct, frozen=True):
    """Puts a needle into one place where content can be. `name` says which.

    `kept` and `tables` say where the needle is stored by design; `is_live` that it can be sent to a running service.
    """

    name: str
    send: Send
    is_live: bool = False
    kept: frozenset[Kept] = frozenset()
    tables: frozenset[str] = frozenset()
