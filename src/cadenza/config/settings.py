"""Every key of the config, declared once: its type, what is allowed, its default, an example and a sentence.

Reading, the messages of mistakes, docs/config.md and the file of `cadenza init` follow from these declarations. A field
without a sentence is filled in by load.py. The repr shows no secret.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal, TypeVar, get_args

from msgspec import defstruct, field

from cadenza import parts
from cadenza.config.checks import (
    ADDRESS,
    ALIASES,
    FIELD_NAMES,
    JSON_FIELDS,
    NETWORKS,
    PASSED_NAMES,
    SHARED_URL,
    STORE_URL,
    VERSION,
    Secret,
    is_private,
    zero,
)
from cadenza.config.kinds import KEYS, KINDS, kind_of
from cadenza.config.reader import PartTable
from cadenza.core.aliases import DEFAULT_ALIASES
from cadenza.core.classes import ClassVersion, ConfiguredClass, GateLimits
from cadenza.core.config_keys import (
    EXISTING_FILE,
    PRICE,
    ConfigTable,
    Contents,
    Like,
    Variable,
    above_zero,
    one_of,
    whole,
)
from cadenza.core.errors import ExpectedError
from cadenza.core.money import Price
from cadenza.core.records import CONTEXT_TOKENS_MAX, OUTPUT_TOKENS_MAX, RetentionBy, Route
from cadenza.core.retention_limits import RetentionLimits
from cadenza.upstreams.dialects import DIALECTS

DEFAULT_PRICES = MappingProxyType(
    {
        "mezzo": Price(input_nano=100, output_nano=210, cached_input_nano=20),
        "forte": Price(input_nano=1_070, output_nano=3_450),
        "fortissimo": Price(input_nano=3_450, output_nano=17_250),
    }
)
SENDABLE = ("[ -~]+", "the key must be one line of printable ASCII characters, and nothing else")
ONE_WORD = ("[!-~]+", "the token must be one word of printable ASCII characters")
RETENTION_RULE = 'must be exactly "zero": the service starts only if every provider has zero data retention'
NO_PLAIN_HTTP = "http sends {} unencrypted; use https"
KIND = one_of(*KINDS)

T = TypeVar("T", bound=PartTable)


class ConfigError(ExpectedError):
    """Everything that is wrong with the configuration, one sentence for each mistake."""

    def __init__(self, problems: list[str], path: Path | None) -> None:
        super().__init__(problems, path)
        self.problems = problems
        self.path = path

    def __str__(self) -> str:
        noun = "problem" if len(self.problems) == 1 else "problems"
        head = f"{self.path or 'configuration'}: {len(self.problems)} {noun}"
        return "\n".join([head, *("  " + problem.replace("\n", "\n    ") for problem in self.problems)])


class NoModel(ConfigError):
    """There is no config file, and the built-in model, which then answers, is not installed."""

    def __str__(self) -> str:
        [missing] = self.problems
        return (
            "there is no model: no config file was found.\n"
            f"Run 'cadenza init' to set up a provider or model server. Without a config: {missing}"
        )


# A key is one line, or two with its sentence.
# fmt: off
class ServerSettings(ConfigTable, frozen=True):
    host: Annotated[str, "the address to listen on"] = "127.0.0.1"
    port: Annotated[int, whole(0, 65_535), "0 for any free one"] = 8080
    workers: Annotated[int, whole(1, 64), "processes; each has its own embedded model and limits"] = 1
    drain_s: Annotated[float, above_zero(), "how long streams may run on after SIGTERM"] = 30.0
    trusted_proxies: Annotated[tuple[str, ...], NETWORKS,
        "whose X-Forwarded-For is believed: addresses and networks"] = ("127.0.0.1", "::1")
    metrics_token_env: Annotated[str | None, Variable("the token for /metrics", "METRICS_TOKEN", *ONE_WORD)] = None
    metrics_token: Secret | None = None


class StoreSettings(ConfigTable, frozen=True):
    url: Annotated[Secret, STORE_URL,
        "a file, or postgresql://user@host/database"] = Secret("sqlite:///./data/cadenza.db")
    region: Annotated[str | None, Like("ca"),
        "where accounts and counters are stored, in your words; shown to operators and users"] = None


class SharedStateSettings(ConfigTable, frozen=True):
    url: Annotated[Secret, SHARED_URL,
        "where processes share rates and slots; memory:// is each for itself"] = Secret("memory://")


class LimitSettings(ConfigTable, frozen=True):
    requests_per_second: Annotated[float, above_zero(), "for each key, smoothed"] = 10.0
    burst: Annotated[int, whole(1), "requests at once, after a pause"] = 20
    concurrency: Annotated[int, whole(1),
        "chat requests in flight, over all processes; without Valkey each worker gets an equal part"] = 256


class ModelSettings(ConfigTable, frozen=True):
    aliases: Annotated[dict[str, str] | None, ALIASES, Like(dict(DEFAULT_ALIASES), is_off=True),
        "model names that a class serves, * for any characters, the first that fits; without it, those of the "
        "example, for /v1/responses and /v1/messages only"] = None


class CharacterSettings(ConfigTable, frozen=True):
    text: Annotated[str | None, Like("You are a helpful assistant."), "without it a default is used"] = None
    file: Annotated[Path | None, Contents("text"), Like("character.md", is_off=True), "or the file that has it"] = None

    def mistakes(self) -> Iterable[tuple[str, str]]:
        if self.text and self.file:
            yield "", "must have text or file, not both"


class PriceSettings(ConfigTable, frozen=True):
    input_nano: Annotated[int | None, PRICE, Like("0.10"), "of the prompt"] = field(default=None, name="input")
    output_nano: Annotated[int | None, PRICE, Like("0.21"), "of the answer"] = field(default=None, name="output")
    cached_input_nano: Annotated[int | None, PRICE, Like("0.02"),
        "without it, cached tokens cost as much as input; mezzo has a "
        "default"] = field(default=None, name="cached_input")


class ProviderSettings(ConfigTable, frozen=True):
    """Serves models. `authorities` are the certificates in `ca_file`. `proxy` comes from the environment."""

    kind: Annotated[str, KIND, Like("openai"),
        'required: any OpenAI-compatible endpoint; "embedded": SmolLM2 on llama.cpp, on this machine'] = ""
    retention: Annotated[str, zero(RETENTION_RULE), Like("zero"),
        "required: you state that the provider retains no data"] = ""
    base_url: Annotated[str | None, ADDRESS, Like("https://api.acme.example/v1"), "of an endpoint; it needs one"] = None
    api_key_env: Annotated[str | None, Variable("the provider's key", "ACME_API_KEY", *SENDABLE)] = None
    api_key_file: Annotated[Path | None, Contents("api_key", *SENDABLE), Like("acme.key", is_off=True),
        "or the file with it, read again at a reload"] = None
    dialect: Annotated[str, one_of(*DIALECTS), Like("plain"),
        "what this upstream wants differently; by default the host tells"] = ""
    api_version: Annotated[str | None, VERSION, Like("2024-10-21", is_off=True),
        "of Azure, for a base_url that does not end in /v1"] = None
    ca_file: Annotated[Path | None, Contents("authorities"), Like("our-ca.pem", is_off=True),
        "trust these certificate authorities, in PEM, instead of the system's; read again at a reload"] = None
    insecure: Annotated[bool, "allow http:// to a public host, unencrypted"] = False
    model_path: Annotated[Path | None, EXISTING_FILE, Like("model.gguf", is_off=True),
        "another GGUF file; only for the embedded model"] = None
    name: str = ""
    api_key: Secret | None = None
    authorities: str | None = None
    proxy: str | None = None

    @property
    def retention_by(self) -> RetentionBy:
        """What makes sure of zero retention. A local model is on this machine."""
        return "api" if kind_of(self.kind).is_local or DIALECTS[self.dialect].enforces_retention else "contract"

    def mistakes(self) -> Iterable[tuple[str, str]]:
        if not self.kind:
            yield "kind", f"missing; it must be {KIND.rule}"
        if not self.retention:
            yield "retention", f"missing; it {RETENTION_RULE}"
        kind, others = kind_of(self.kind), '" or "'.join(name for name in KINDS if name != self.kind)
        for name in filter(lambda name: getattr(self, name), KEYS):
            if name not in kind.keys:
                yield name, f'only for a provider of kind = "{others}"'
        if not (kind.is_local or self.base_url):
            yield "base_url", f"missing; it must be {ADDRESS.rule}"
        if self.base_url and is_public_http(self.base_url) and not self.insecure:
            yield "base_url", f"{NO_PLAIN_HTTP.format('keys and messages')}, or insecure = true"
        if self.api_key_env and self.api_key_file:
            yield "", "must have api_key_env or api_key_file, not both"


class TimeoutSettings(ConfigTable, frozen=True):
    connect_s: Annotated[float, above_zero(), "to connect"] = 5.0
    first_token_s: Annotated[float | None, above_zero(), Like(60),
        "to the first token; 60 without it, 300 for the embedded model"] = None
    idle_s: Annotated[float, above_zero(), "each pause after it"] = 60.0
    total_s: Annotated[float, above_zero(), "the whole reply"] = 3600.0


class CandidateSettings(ConfigTable, frozen=True):
    """A model at a provider, with the names of a Route's fields. None: as usual for its kind of provider."""

    provider: Annotated[str, Like("acme"), "required: its name in [providers]"] = ""
    model: Annotated[str | None, Like("acme-large"), "its name there; the embedded model needs none"] = None
    context_tokens: Annotated[int | None, whole(1, CONTEXT_TOKENS_MAX), Like(200_000),
        "the window of the model; 128,000 without it, 8,192 for the embedded model"] = None
    max_output_tokens: Annotated[int | None, whole(1, OUTPUT_TOKENS_MAX), Like(32_000),
        "16,384 without it, 4,096 for the embedded model, which stops at 256 if max_tokens is not sent"] = None
    continues: Annotated[bool,
        "true: it can continue an answer that another route began"] = field(default=False, name="continue")
    system: Annotated[Literal["one", "each"], '"each": leading system messages are sent separately, not as one'] = "one"
    reasoning: Annotated[Literal["pass", "drop"], '"drop": reasoning goes neither to the client nor back'] = "pass"
    retention: Annotated[Literal["zero"] | None, zero('must be exactly "zero"'), Like("zero"), "goes with `by`"] = None
    by: Annotated[RetentionBy | None, Like("contract"),
        '"contract" by default; "api": the provider\'s API must enforce zero retention'] = None
    always_send_max_tokens: Annotated[bool, "true: max_tokens is sent even if the client gave none"] = False
    max_tokens_field: Annotated[Literal["", "max_tokens", "max_completion_tokens"],
        one_of("max_tokens", "max_completion_tokens"), Like("max_tokens"),
        "its name upstream; by default the dialect's"] = ""
    vision: Annotated[bool, "true: it takes images"] = False
    audio: Annotated[bool, "true: it takes audio"] = False
    files: Annotated[bool, "true: it takes files, with tools; without tools files are read here"] = False
    omit: Annotated[tuple[str, ...], FIELD_NAMES, Like(["seed"]), "fields of a request that it is not sent"] = ()
    passes: Annotated[tuple[str, ...], PASSED_NAMES, Like(["top_k", "min_p"]),
        "fields that the service does not know, and it is sent"] = field(default=(), name="pass")
    fields: Annotated[str, JSON_FIELDS, Like({"top_k": 40}), "further fields of every request"] = ""
    timeouts: Annotated[TimeoutSettings, "in seconds"] = TimeoutSettings()
    cost_input: Annotated[int | None, PRICE, Like("0.80"),
        "what the provider charges you for the prompt; never charged to accounts"] = None
    cost_output: Annotated[int | None, PRICE, Like("2.40"), "of the answer; goes with cost_input"] = None
    cost_cached: Annotated[int | None, PRICE, Like("0.20"), "without it, cached tokens cost as much as input"] = None

    def mistakes(self) -> Iterable[tuple[str, str]]:
        if self.by and not self.retention:
            yield "by", 'it needs retention = "zero" in the same route'
        costs = (self.cost_input, self.cost_output, self.cost_cached)
        if any(cost is not None for cost in costs) and None in costs[:2]:
            yield "", "cost_input and cost_output belong together: give both or none"

    @property
    def cost(self) -> Price | None:
        if self.cost_input is None or self.cost_output is None:
            return None
        return Price(self.cost_input, self.cost_output, self.cost_cached)


class RouteSettings(CandidateSettings, frozen=True):
    order: Annotated[int, whole(0), "routes are tried by order, lowest first"] = 0
    weight: Annotated[int, whole(1), "shares the load among routes of one order"] = 1


class GateSettings(GateLimits, frozen=True, kw_only=True):
    suite: Annotated[Path | None, EXISTING_FILE, Like("forte.jsonl", is_off=True),
        "the suite of verdicts; without it, the starter suite"] = None


class AnyClassSettings(ConfigTable, frozen=True, kw_only=True):
    """What the config says about a class in every case."""

    gate: Annotated[GateSettings, "what a verdict must show before its candidate is promoted"] = GateSettings()


class ClassKeys(AnyClassSettings, frozen=True, kw_only=True):
    """A class in the file."""

    character: Annotated[CharacterSettings | None, "replaces [character] for this class"] = None
    routes: Annotated[tuple[RouteSettings, ...] | None, "tried in their order"] = None
    candidates: Annotated[tuple[CandidateSettings, ...],
        "models that may replace the routes: the same keys, without order and weight"] = ()


class ClassSettings(AnyClassSettings, frozen=True, kw_only=True):
    """A class with its routes as records, sorted by order.

    `pinned_at` is the line of the config that names the routes; None for the built-in default, which pins nothing.
    A class without routes here has them in the store: it must be adopted.
    """

    routes: tuple[Route, ...] = ()
    candidates: tuple[Route, ...] = ()
    character: str = ""
    pinned_at: int | None = None






class Sections(ConfigTable, frozen=True, kw_only=True):
    """The tables that are used as they are declared."""

    server: Annotated[ServerSettings, "where the service listens, and whom it trusts"] = ServerSettings()
    store: Annotated[StoreSettings, "where accounts, keys and the ledger are kept"] = StoreSettings()
    shared_state: Annotated[SharedStateSettings, "Valkey or Redis 7"] = SharedStateSettings()
    limits: Annotated[LimitSettings, "of each key, and of all requests"] = LimitSettings()
    models: Annotated[ModelSettings, "further names of the classes"] = ModelSettings()
    providers: Annotated[dict[str, ProviderSettings], "by a name of your choice"] = field(default_factory=dict)
    retention: Annotated[RetentionLimits, "how long things are kept: docs/privacy.md"] = RetentionLimits()


class ConfigFile(Sections, frozen=True, kw_only=True):
    """The file: `prices` and `classes` are by the id of a class."""

    character: Annotated[CharacterSettings, "the system message of the service"] = CharacterSettings()
    prices: Annotated[dict[str, PriceSettings],
        "what accounts pay; `cadenza class price` changes them with a date"] = field(default_factory=dict)
    classes: Annotated[dict[str, ClassKeys],
        "the classes are mezzo, forte and fortissimo"] = field(default_factory=dict)


class Settings(Sections, frozen=True, kw_only=True):
    """The whole configuration. `source` is the file that it came from, or None for the built-in default.

    `fault_point` is only for tests: the step at which the process kills itself. `missing_secrets` has a sentence for
    each secret that should be in the environment and is not, `missing_models` for each local model that is not
    installed, and `missing_extras` for what an extra of the package would bring.
    """

    source: Path | None
    prices: dict[str, Price]
    classes: dict[str, ClassSettings]
    costs: dict[str, Price] = field(default_factory=dict)  # by provider/model: of a token, where a route says it
    tables: Mapping[str, PartTable] = field(default_factory=dict)  # of parts, by their names in the file
    site_url: str | None = None  # where its pages are, if the file says it
    fault_point: str | None = None
    missing_secrets: tuple[str, ...] = ()
    missing_models: tuple[str, ...] = ()
    missing_extras: tuple[str, ...] = ()

    def of(self, table: type[T]) -> T | None:
        """The table of a part; None if the file does not have it."""
        return next((one for one in self.tables.values() if isinstance(one, table)), None)

    def retention_of_providers(self) -> dict[str, RetentionBy]:
        return {name: provider.retention_by for name, provider in self.providers.items()}

    def configured_classes(self) -> dict[str, ConfiguredClass]:
        """The classes with routes, as versions that are not recorded yet."""
        return {
            class_id: ConfiguredClass(
                ClassVersion(class_id=class_id, routes=one.routes, character=one.character), one.pinned_at is not None
            )
            for class_id, one in self.classes.items()
            if one.routes
        }

    @property
    def lacks_model(self) -> bool:
        """Whether there is no config file, and the built-in model, which then answers, is not installed."""
        return bool(self.missing_models) and not self.source

    def require_secrets(self) -> None:
        """ConfigError if a secret that the file names is not in the environment."""
        if self.missing_secrets:
            raise ConfigError(list(self.missing_secrets), self.source)

    def require_complete(self) -> None:
        """The same, and ConfigError if a model or an extra is not installed: all that a start needs."""
        if self.lacks_model:
            raise NoModel(list(self.missing_models), None)
        self.require_secrets()
        if missing := [*self.missing_models, *self.missing_extras]:
            raise ConfigError(missing, self.source)


def file_with(names: Iterable[str]) -> type[ConfigFile]:
    """The declaration of a file with those of these tables that belong to parts which are installed.

    A part that runs without its tables has them with their defaults.
    """
    usual = (table for part in parts.PARTS if part.is_default for table in part.tables)
    found = ((name, parts.find(f"[{name}]")) for name in dict.fromkeys([*names, *usual]))
    return _file_with(tuple((name, part.name) for name, part in found if part and part.is_installed))


@cache
def _file_with(tables: tuple[tuple[str, str], ...]) -> type[ConfigFile]:
    owners = {part.name: part for part in parts.PARTS}
    fields = []
    for name, part in tables:
        kind = owners[part].load("settings").TABLES[name]
        fields.append((name, kind, get_args(kind)[0]() if owners[part].is_default else None))
    made = defstruct("ConfigFile", fields, bases=(ConfigFile,), frozen=True, kw_only=True)
    assert issubclass(made, ConfigFile)
    return made


def is_public_http(url: str) -> bool:
    return url.startswith("http://") and not is_private(url)
