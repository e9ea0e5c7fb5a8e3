"""The address of the shared state, as the config file gives it, and the state behind it."""

import ssl
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from cadenza.fleet.memory import MemoryState
from cadenza.fleet.state import SharedState
from cadenza.observe import Observer

MEMORY = "memory://"
TLS_SCHEMES = ("rediss", "valkeys")
PORT = 6379


class Address(msgspec.Struct, frozen=True):
    """Where Valkey listens, and who we are there. Its repr shows neither user nor password."""

    host: str = ""
    port: int = PORT
    path: str = ""  # of a Unix socket, instead of host and port
    tls: ssl.SSLContext | None = None
    database: int = 0
    credentials: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Address({self.path or f'{self.host}:{self.port}'}, database={self.database})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("place", self.path or f"{self.host}:{self.port}"), ("database", self.database)]


def parse(url: str) -> Address:
    """The config has checked the address before."""
    parts = urlsplit(url)
    credentials = (unquote(parts.username or "default"), unquote(parts.password)) if parts.password else ()
    if parts.scheme == "unix":
        (database,) = parse_qs(parts.query).get("db", ["0"])
        return Address(path=unquote(parts.path), database=int(database), credentials=credentials)
    return Address(
        host=parts.hostname or "",
        port=parts.port or PORT,
        tls=ssl.create_default_context() if parts.scheme in TLS_SCHEMES else None,
        database=int(parts.path.strip("/") or 0),
        credentials=credentials,
    )


def open_shared_state(url: str, processes: int, observer: Observer) -> SharedState:
    """The shared state at this address. Nothing is opened until it is started."""
    if url == MEMORY:
        observer.metrics.shared_state_up.set(1)
        return MemoryState()
    from cadenza.fleet.valkey.state import ValkeyState  # noqa: PLC0415 its parser is needed only for Valkey

    return ValkeyState(parse(url), processes, observer)
