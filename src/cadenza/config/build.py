"""Builds the settings from the values of a file: defaults, and the checks that look at more than one value.

Invariants: every provider has zero retention word by word, every route names a defined provider, and no key of a
provider is in the file. After a mistake the records are incomplete, but building goes on to find the other mistakes:
use the settings only if the reader has no problems.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from cadenza.config.checks import (
    ANY_PROVIDER,
    PROVIDER_OF_KIND,
    RETENTION_RULE,
    SECTIONS,
    Table,
    is_private,
    suggest,
)
from cadenza.config.grounding import build_grounding
from cadenza.config.platform import build_mail, build_platform, build_stripe
from cadenza.config.proxies import proxy_for
from cadenza.config.read import KeyPath, Reader
from cadenza.config.settings import (
    DEFAULT_CHARACTER,
    DEFAULT_PRICES,
    EMBEDDED_CHARACTER,
    ClassSettings,
    Limits,
    Provider,
    Secret,
    Server,
    Settings,
    SharedState,
    Store,
)
from cadenza.core.money import Price
from cadenza.core.records import CLASSES, Route, Timeouts
from cadenza.upstreams.dialects import DIALECTS, dialect_of

FAULT_VARIABLE = "CADENZA_FAULT_POINT"
EMBEDDED_MODEL = "smollm2-135m-instruct"
OPENAI_TOKENS = {"context_tokens": 128_000, "max_output_tokens": 16_384}
EMBEDDED_TOKENS = {"context_tokens": 8_192, "max_output_tokens": 4_096}
EMBEDDED_PATIENCE = {"first_token_s": 300.0}  # a full window takes a minute or more on a busy machine


def build_settings(raw: Table, reader: Reader, source: Path | None, environ: Mapping[str, str]) -> Settings:
    keys = {**SECTIONS, "providers": _provider_keys(raw)}
    values: Table = {name: {} for name in SECTIONS} | reader.table(raw, keys)
    if not values["providers"] and not raw.get("classes"):
        values |= _embedded_default()
    elif not raw.get("classes"):
        example = _example_route(values["providers"])
        reader.problem(("classes",), f"no class has a route; add lines like these:\n{example}")
    providers = {name: _provider(name, given, reader, environ) for name, given in values["providers"].items()}
    platform = build_platform(values["platform"], reader, environ)
    general = _character(values["character"], ("character",), reader)
    return Settings(
        source=source,
        server=_server(values["server"], reader, environ),
        store=_store(values["store"], reader.folder),
        shared_state=_shared_state(values["shared_state"]),
        limits=Limits(**values["limits"]),
        prices={id_: _price(values["prices"].get(id_, {}), id_, reader) for id_ in DEFAULT_PRICES},
        providers=providers,
        classes={id_: _class(given, id_, providers, general, reader) for id_, given in values["classes"].items()},
        grounding=build_grounding(values["grounding"], reader, environ),
        platform=platform,
        mail=build_mail(values["mail"], platform, reader, environ),
        stripe=build_stripe(values["payments"].get("stripe", {}), reader, environ),
        fault_point=environ.get(FAULT_VARIABLE),
    )


def _provider_keys(raw: Table) -> Table:
    """The keys that each provider of the file may have."""
    given = raw.get("providers")
    named = given.items() if isinstance(given, dict) else ()
    kinds = {name: one.get("kind") if isinstance(one, dict) else None for name, one in named}
    return {name: PROVIDER_OF_KIND.get(str(kind), ANY_PROVIDER) for name, kind in kinds.items()}


def _embedded_default() -> Table:
    """A file without providers and classes has every class on the embedded model."""
    return {
        "providers": {"local": {"kind": "embedded", "retention": "zero"}},
        "classes": {class_id: {"routes": [{"provider": "local"}]} for class_id in CLASSES},
    }


def _example_route(providers: Mapping[str, Table]) -> str:
    name, given = next(iter(providers.items()), ("local", Table()))
    model = '\nmodel = "name-of-a-model-there"' if given.get("kind") == "openai" else ""
    return f'[[classes.forte.routes]]\nprovider = "{name}"{model}'


def _server(values: Table, reader: Reader, environ: Mapping[str, str]) -> Server:
    token = environ.get(values.get("metrics_token_env", ""), "").strip()
    if not (token.isascii() and token.isprintable() and " " not in token):
        reader.problem(("server", "metrics_token_env"), "the token must be one word of printable ASCII characters")
    return Server(**values, metrics_token=Secret(token) if token else None)


def _store(values: Table, folder: Path) -> Store:
    store = Store(**values)
    scheme, _, path = store.url.partition(":///")
    url = f"sqlite:///{(folder / path).resolve()}" if scheme == "sqlite" else Secret(store.url)
    return msgspec.structs.replace(store, url=url)


def _shared_state(values: Table) -> SharedState:
    shared = SharedState(**values)
    return shared if shared.url == "memory://" else SharedState(Secret(shared.url))


def _price(values: Table, class_id: str, reader: Reader) -> Price:
    """A cached price above the input price could cost more than the hold: a mistake if given, dropped if a default."""
    default = DEFAULT_PRICES[class_id]
    input_nano = values.get("input", default.input_nano)
    cached_nano = values.get("cached_input", default.cached_input_nano)
    if cached_nano is not None and cached_nano > input_nano:
        cached_nano = None
        if "cached_input" in values:
            reader.problem(("prices", class_id, "cached_input"), "must not be above the price of input")
    return Price(input_nano, values.get("output", default.output_nano), cached_nano)


def _character(values: Table, at: KeyPath, reader: Reader) -> str | None:
    if "file" in values:
        return reader.file(values["file"], (*at, "file"))
    return values["text"].strip() if "text" in values else None


def _provider(name: str, values: Table, reader: Reader, environ: Mapping[str, str]) -> Provider:
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
    proxy = reader.attempt((*at, "base_url"), proxy_for, url, environ) if url else None
    secrets = {"api_key": _api_key(values, at, reader, environ), "proxy": Secret(proxy) if proxy else None}
    return Provider(name, **defaults | values | paths | secrets)


def _api_key(values: Table, at: KeyPath, reader: Reader, environ: Mapping[str, str]) -> Secret | None:
    """The provider's key, which is sent in a header. A key that is missing from the environment is no mistake yet."""
    if "api_key_file" in values:
        origin, key = "api_key_file", reader.file(values["api_key_file"], (*at, "api_key_file"))
    else:
        origin, key = "api_key_env", environ.get(values.get("api_key_env", ""), "").strip()
    if key and not (key.isascii() and key.isprintable()):
        reader.problem((*at, origin), "the key must be one line of printable ASCII characters, and nothing else")
    return Secret(key) if key else None


def _class(
    values: Table, class_id: str, providers: Mapping[str, Provider], general: str | None, reader: Reader
) -> ClassSettings:
    at = ("classes", class_id)
    given = values.get("routes", [])
    if not given:
        reader.problem((*at, "routes"), f"missing; a class needs at least one [[classes.{class_id}.routes]]")
    routes = [_route(one, (*at, "routes", index), providers, reader) for index, one in enumerate(given)]
    usable = sorted(filter(None, routes), key=lambda route: route.order)
    is_embedded = all(providers[route.provider].kind == "embedded" for route in usable)
    default = general or (EMBEDDED_CHARACTER if is_embedded else DEFAULT_CHARACTER)
    own = _character(values.get("character", {}), (*at, "character"), reader)
    return ClassSettings(tuple(usable), own or default, values.get("search_decision", "rules"))


def _route(values: Table, at: KeyPath, providers: Mapping[str, Provider], reader: Reader) -> Route | None:
    name = values.get("provider", "")
    provider = providers.get(name)
    if provider is None:
        problem = "no provider has this name" if name else "missing"
        reader.problem((*at, "provider"), f"{problem}; {suggest(name, providers)}")
        return None
    if provider.kind == "openai" and "model" not in values:
        reader.problem((*at, "model"), "missing; it must be the name of a model at that provider")
    dialect = DIALECTS["llamacpp" if provider.kind == "embedded" else provider.dialect]
    if values.get("continue") and not dialect.continues:
        reader.problem((*at, "continue"), f"a provider of the dialect {provider.dialect} cannot continue an answer")
    defaults: Table = {"model": provider.model_path.stem if provider.model_path else EMBEDDED_MODEL}
    defaults |= OPENAI_TOKENS if provider.kind == "openai" else EMBEDDED_TOKENS
    defaults["custom_tools"] = dialect.custom_tools
    defaults["passes"] = values.get("pass", ())
    own = {name: value for name, value in values.items() if name not in ("continue", "pass", "timeouts")}
    own["drops"] = (*dialect.omits, *values.get("omit", ()))
    patience = EMBEDDED_PATIENCE if provider.kind == "embedded" else {}
    timeouts = Timeouts(**patience | values.get("timeouts", {}))
    return Route(**defaults | own, continues=values.get("continue", False), timeouts=timeouts)
