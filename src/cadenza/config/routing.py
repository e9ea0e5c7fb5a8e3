"""Providers, classes and the routes between them.

Invariants: every provider has zero retention word by word, every route names a defined provider,
and no key of a provider stands in the file.
"""

from collections.abc import Mapping
from types import MappingProxyType
from urllib.parse import urlsplit

from cadenza.config.character import read_character
from cadenza.config.checks import (
    RETENTION_RULE,
    CheckError,
    Checks,
    Table,
    base_url,
    boolean,
    integer,
    one_of,
    positive,
    retention,
    suggest,
    table,
    tables,
    text,
    variable_name,
)
from cadenza.config.lines import KeyPath
from cadenza.config.proxies import proxy_for
from cadenza.config.reader import Reader
from cadenza.config.settings import ClassSettings, Dialect, Provider
from cadenza.core.records import (
    AUTO,
    CLASSES,
    CONTEXT_TOKENS_MAX,
    OUTPUT_TOKENS_MAX,
    RESERVED_CLASS,
    Route,
    Timeouts,
)

EMBEDDED_MODEL = "smollm2-135m-instruct"

PROVIDER: Checks = {
    "kind": one_of("openai", "embedded"),
    "base_url": base_url,
    "api_key_env": variable_name,
    "retention": retention,
    "model_path": text,
    "dialect": one_of("openai", "openrouter", "plain"),
}
CLASS: Checks = {"routes": tables, "character": table}
ROUTE: Checks = {
    "provider": text,
    "model": text,
    "context_tokens": integer(1, CONTEXT_TOKENS_MAX),
    "max_output_tokens": integer(1, OUTPUT_TOKENS_MAX),
    "order": integer(0),
    "weight": integer(1),
    "continue": boolean,
    "timeouts": table,
}
TIMEOUTS: Checks = {"connect_s": positive, "first_token_s": positive, "idle_s": positive, "total_s": positive}

KEYS_OF_ONE_KIND = MappingProxyType(
    {"base_url": "openai", "api_key_env": "openai", "dialect": "openai", "model_path": "embedded"}
)
LITERAL_KEYS = MappingProxyType(
    dict.fromkeys(
        ("api_key", "key", "token"),
        "a key is not for the file; put it into the environment and name the variable with api_key_env",
    )
)
NOT_CONFIGURABLE = MappingProxyType(
    {
        RESERVED_CLASS: "this class is reserved and cannot be configured",
        AUTO: "this is not a class of its own: it stands for the one that the account prefers",
    }
)


def class_tables(raw: Table, at: KeyPath, reader: Reader) -> Table:
    """The tables of a section whose keys are class ids."""
    return reader.table(raw, at, dict.fromkeys(CLASSES, table), refused=NOT_CONFIGURABLE, noun="class")


def read_providers(raw: Table, reader: Reader, environ: Mapping[str, str]) -> dict[str, Provider]:
    given = reader.table(raw, ("providers",), dict.fromkeys(raw, table))
    return {name: _read_provider(name, given[name], reader, environ) for name in given}


def read_classes(
    raw: Table, providers: Mapping[str, Provider], character: str, reader: Reader
) -> dict[str, ClassSettings]:
    if not raw:
        reader.problem(("classes",), f"no class has a route; add lines like these:\n{_example_route(providers)}")
    classes = {}
    for class_id, given in class_tables(raw, ("classes",), reader).items():
        at = ("classes", class_id)
        values = reader.table(given, at, CLASS)
        if "routes" not in given or given["routes"] == []:
            reader.problem((*at, "routes"), f"missing; a class needs at least one [[classes.{class_id}.routes]]")
        routes = [
            _read_route(route, (*at, "routes", index), providers, reader)
            for index, route in enumerate(values.get("routes", []))
        ]
        classes[class_id] = ClassSettings(
            routes=tuple(sorted(filter(None, routes), key=lambda route: route.order)),
            character=read_character(values.get("character", {}), (*at, "character"), character, reader),
        )
    return classes


def _read_provider(name: str, raw: Table, reader: Reader, environ: Mapping[str, str]) -> Provider:
    at = ("providers", name)
    kind = raw.get("kind")
    of_another_kind = {
        key: f'only for a provider of kind = "{only}"'
        for key, only in KEYS_OF_ONE_KIND.items()
        if kind in KEYS_OF_ONE_KIND.values() and only != kind
    }
    values = reader.table(raw, at, PROVIDER, refused=LITERAL_KEYS | of_another_kind)
    if kind is None:
        reader.problem((*at, "kind"), 'missing; it must be "openai" or "embedded"')
    if kind == "openai" and "base_url" not in raw:
        reader.problem((*at, "base_url"), 'missing; it must be an address like "https://host/v1"')
    if "retention" not in raw:
        reader.problem((*at, "retention"), f"missing; it {RETENTION_RULE}")
    model_path = reader.folder / values["model_path"] if "model_path" in values else None
    if model_path and not model_path.is_file():
        reader.problem((*at, "model_path"), f"there is no file at {model_path}")
    return Provider(
        name=name,
        kind=values.get("kind", "embedded"),  # after a mistake: the kind that asks nothing more of its routes
        base_url=values.get("base_url"),
        api_key_env=values.get("api_key_env"),
        api_key=environ.get(values.get("api_key_env", ""), "").strip() or None,
        model_path=model_path,
        dialect=values.get("dialect") or _dialect_of(values.get("base_url", "")),
        proxy=_read_proxy(values.get("base_url"), at, reader, environ),
    )


def _read_proxy(url: str | None, at: KeyPath, reader: Reader, environ: Mapping[str, str]) -> str | None:
    try:
        return proxy_for(url, environ) if url else None
    except CheckError as mistake:
        reader.problem((*at, "base_url"), str(mistake))
        return None


def _dialect_of(url: str) -> Dialect:
    host = urlsplit(url).hostname or ""
    if host == "api.openai.com":
        return "openai"
    return "openrouter" if f".{host}".endswith(".openrouter.ai") else "plain"


def _read_route(raw: Table, at: KeyPath, providers: Mapping[str, Provider], reader: Reader) -> Route | None:
    values = reader.table(raw, at, ROUTE)
    timeouts = reader.table(values.pop("timeouts", {}), (*at, "timeouts"), TIMEOUTS)
    values["continues"] = values.pop("continue", False)
    if "provider" not in raw:
        reader.problem((*at, "provider"), f"missing; {suggest('', providers)}")
    if "provider" not in values:
        return None
    provider = providers.get(values["provider"])
    if provider is None:
        reader.problem((*at, "provider"), f"no provider has this name; {suggest(values['provider'], providers)}")
        return None
    if provider.kind == "openai" and "model" not in raw:
        reader.problem((*at, "model"), "missing; it must be the name of a model at that provider")
    return Route(**_route_defaults(provider) | values, timeouts=Timeouts(**timeouts))


def _route_defaults(provider: Provider) -> Table:
    if provider.kind == "openai":
        return {"model": "", "context_tokens": 128_000, "max_output_tokens": 16_384}
    model = provider.model_path.stem if provider.model_path else EMBEDDED_MODEL
    return {"model": model, "context_tokens": 8_192, "max_output_tokens": 8_192}


def _example_route(providers: Mapping[str, Provider]) -> str:
    provider = next(iter(providers.values()), None)
    lines = ["[[classes.forte.routes]]", f'provider = "{provider.name if provider else "local"}"']
    if provider and provider.kind == "openai":
        lines.append('model = "name-of-a-model-there"')
    return "\n".join(lines)
