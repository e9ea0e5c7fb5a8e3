"""The records that the rest of the program is configured with, and their defaults.

Invariant: the repr of a record shows neither a provider's key nor the password in the store's address.
"""

from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from cadenza.core.money import Price
from cadenza.core.records import Route

HIDDEN = "***"

DEFAULT_PRICES = MappingProxyType(
    {
        "mezzo": Price(input_nano=100, output_nano=210, cached_input_nano=20),
        "forte": Price(input_nano=1_070, output_nano=3_450),
        "fortissimo": Price(input_nano=3_450, output_nano=17_250),
    }
)

Dialect = Literal["openai", "openrouter", "plain"]


class ConfigError(Exception):
    """Everything that is wrong with the configuration, one sentence each."""

    def __init__(self, problems: list[str], path: Path | None) -> None:
        super().__init__(problems, path)
        self.problems = problems
        self.path = path

    def __str__(self) -> str:
        noun = "problem" if len(self.problems) == 1 else "problems"
        head = f"{self.path or 'configuration'}: {len(self.problems)} {noun}"
        return "\n".join([head, *("  " + problem.replace("\n", "\n    ") for problem in self.problems)])


class Guarded(msgspec.Struct, frozen=True):
    """A record that carries a secret: `repr`, and rich's own form of it, show only what `shown` gives."""

    def shown(self) -> dict[str, object]:
        raise NotImplementedError

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.shown().items())
        return f"{type(self).__name__}({fields})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return list(self.shown().items())


class Server(msgspec.Struct, frozen=True):
    """Where the service listens, and how long it waits for what runs when it is told to end."""

    host: str = "127.0.0.1"
    port: int = 8080
    workers: int = 1
    drain_s: float = 30.0


class Store(Guarded, frozen=True):
    """Where accounts, keys and the ledger are kept. Once loaded, the path of an SQLite address is absolute."""

    url: str = "sqlite:///./data/cadenza.db"
    region: str = "ca"

    def shown(self) -> dict[str, object]:
        scheme = self.url.partition("://")[0]
        return {"url": self.url if scheme == "sqlite" else f"{scheme}://{HIDDEN}", "region": self.region}


class SharedState(msgspec.Struct, frozen=True):
    """Where rate limits, slots and revocations are shared."""

    url: str = "memory://"


class Limits(msgspec.Struct, frozen=True):
    """The rate per key, smoothed, and the chat requests in flight over the fleet."""

    requests_per_second: float = 10.0
    burst: int = 20
    concurrency: int = 256


class Provider(Guarded, frozen=True):
    """Who serves models. `api_key` is what the environment holds under `api_key_env`, `proxy` the one it names."""

    name: str
    kind: Literal["openai", "embedded"]
    base_url: str | None = None
    api_key_env: str | None = None
    api_key: str | None = None
    retention: Literal["zero"] = "zero"
    model_path: Path | None = None
    dialect: Dialect = "plain"
    proxy: str | None = None

    def shown(self) -> dict[str, object]:
        fields = msgspec.structs.asdict(self)
        return fields | {"api_key": HIDDEN if self.api_key else None, "proxy": HIDDEN if self.proxy else None}


class ClassSettings(msgspec.Struct, frozen=True):
    """What a class is made of: its routes, sorted by order, and its character."""

    routes: tuple[Route, ...]
    character: str


class Settings(msgspec.Struct, frozen=True):
    """The whole configuration. `source` is the file it came from; none for the built-in default.

    `fault_point` is for tests alone: the step at which the process kills itself.
    """

    source: Path | None
    server: Server
    store: Store
    shared_state: SharedState
    limits: Limits
    prices: dict[str, Price]
    providers: dict[str, Provider]
    classes: dict[str, ClassSettings]
    fault_point: str | None = None


def missing_secrets(settings: Settings) -> list[str]:
    """One sentence for each provider whose key should be in the environment and is not."""
    return [
        f"providers.{provider.name}: the environment variable {provider.api_key_env} is unset or empty; "
        "put the provider's key into it."
        for provider in settings.providers.values()
        if provider.api_key_env and not provider.api_key
    ]
