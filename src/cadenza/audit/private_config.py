"""The config of an audited service: the user's own file, with everything outside of this machine replaced.

Providers, the search engine and the trace collector become the audit's upstream, with the dialects of the real ones.
Store and shared state are the audit's own, of the same kind. Secrets are replaced by needles: no real one is used.
E-mail and payments are left out. Rates are raised, so that the audit takes seconds, and there are few slots, so that
it can be refused for want of one.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from cadenza.audit.needles import Needles
from cadenza.config import Settings
from cadenza.core.records import CLASSES

Table = dict[str, Any]

PROVIDER = "built-in"  # for classes whose routes are in the store, and for the embedded model
MODEL = "audit-model"
CONCURRENCY = 4
DRAIN_S = 5
LIMITS = {"requests_per_second": 10_000.0, "burst": 10_000, "concurrency": CONCURRENCY}
LEFT_OUT = ("mail", "payments")
SECRET_KEY_ENV = "CADENZA_SECRET_KEY"  # noqa: S105 the name of a variable


class AuditedPlaces(msgspec.Struct, frozen=True):
    """Where the audited service has its things. `inputs` is what the user would have written, and is not searched."""

    upstream_url: str
    store_url: str
    shared_state_url: str
    inputs: Path
    index: Path


class PrivateConfig(msgspec.Struct, frozen=True):
    """The file's text, the variables that it names, and what of the user's file is not in it."""

    toml: str
    variables: dict[str, str]
    secrets: list[str]  # the names of the needles in them
    has_index: bool  # search is local
    metrics_token: str  # that opens /metrics; empty if it needs none
    notes: list[str]


def make_config(raw: Mapping[str, Any], settings: Settings, places: AuditedPlaces, needles: Needles) -> PrivateConfig:
    """`raw` is the user's file as it was parsed; `settings` are the same, checked."""
    rewrite = _Rewrite(dict(raw), settings, places, needles)
    tables = {name: value for name, value in raw.items() if name not in LEFT_OUT} | {
        "server": rewrite.server(),
        "store": {**raw.get("store", {}), "url": places.store_url},
        "shared_state": {"url": places.shared_state_url},
        "limits": {**raw.get("limits", {}), **LIMITS},
        "providers": rewrite.providers(),
        "classes": rewrite.classes(),
        "grounding": rewrite.grounding(),
        "platform": rewrite.platform(),
    }
    if "character" in raw:
        tables["character"] = rewrite.character(raw["character"])
    if "observe" in raw:
        tables["observe"] = rewrite.observe()
    rewrite.notes += [f"[{name}] is left out" for name in LEFT_OUT if name in raw]
    return PrivateConfig(
        toml=write_toml(tables),
        variables=rewrite.variables,
        secrets=rewrite.secrets,
        has_index=rewrite.has_index,
        metrics_token=rewrite.variables.get(raw.get("server", {}).get("metrics_token_env", ""), ""),
        notes=rewrite.notes,
    )


class _Rewrite:
    def __init__(self, raw: Table, settings: Settings, places: AuditedPlaces, needles: Needles) -> None:
        self._raw = raw
        self._settings = settings
        self._places = places
        self._needles = needles
        self._folder = settings.source.parent if settings.source else Path.cwd()
        self.variables: dict[str, str] = {}
        self.secrets: list[str] = []
        self.has_index = False
        self.notes: list[str] = []

    def server(self) -> Table:
        given: Table = self._raw.get("server", {})
        if name := given.get("metrics_token_env"):
            self._secret(name, "the token for /metrics")
        return {**given, "host": "127.0.0.1", "port": 0, "drain_s": DRAIN_S}

    def observe(self) -> Table:
        """Every request is traced."""
        given: Table = self._raw["observe"]
        if name := given.get("headers_env"):
            self._secret(name, "the header for the trace collector", "authorization=")
        return {**given, "otlp_url": self._places.upstream_url, "sample": 1.0}

    def platform(self) -> Table:
        """Without its address: the audit talks to the site on loopback, without TLS."""
        given: Table = self._raw.get("platform", {})
        self._secret(
            given.get("secret_key_env", SECRET_KEY_ENV), "the secret key of the site", "of-32-characters-or-more-"
        )
        kept = ("opening_credit", "opening_credits_per_hour", "secret_key_env")
        return {name: given[name] for name in kept if name in given}

    def providers(self) -> Table:
        if any(one.kind == "embedded" for one in self._settings.providers.values()):
            self.notes.append("the embedded model is not asked: the built-in upstream answers for it")
        return {PROVIDER: self._provider(PROVIDER, {})} | {
            name: self._provider(name, given) for name, given in self._raw.get("providers", {}).items()
        }

    def _provider(self, name: str, given: Table) -> Table:
        found = self._settings.providers.get(name)
        if given.get("kind") == "embedded":
            given = {}
        if "api_key_file" in given:
            file = self._places.inputs / f"{name}.key"
            file.write_text(self._needles.make(f"the key of the provider {name}").word)
            given = {**given, "api_key_file": str(file)}
        elif "api_key_env" in given:
            self._secret(given["api_key_env"], f"the key of the provider {name}")
        return {
            **given,
            "kind": "openai",
            "base_url": f"{self._places.upstream_url}/{'openai' if 'api_version' in given else 'v1'}",
            "retention": "zero",
            "dialect": found.dialect if found else "plain",
        }

    def classes(self) -> Table:
        """Every class has routes, and no watch asks by itself."""
        return {class_id: self._class(self._raw.get("classes", {}).get(class_id, {})) for class_id in CLASSES}

    def _class(self, given: Table) -> Table:
        kept = {name: value for name, value in given.items() if name != "watch"}
        if not kept.get("routes"):
            kept = {**kept, "routes": [{"provider": PROVIDER, "model": MODEL}]}
        kept["routes"] = [{"model": MODEL, **route} for route in kept["routes"]]
        if "suite" in kept.get("gate", {}):
            kept["gate"] = {**kept["gate"], "suite": str(self._folder / kept["gate"]["suite"])}
        return {**kept, "character": self.character(kept["character"])} if "character" in kept else kept

    def character(self, given: Table) -> Table:
        return {"file": str(self._folder / given["file"])} if "file" in given else given

    def grounding(self) -> Table:
        given: Table = self._raw.get("grounding", {})
        search = given.get("search", True)
        if search is False:
            self.notes.append("search is off")
            return given
        search = {} if search is True else dict(search)
        if search.get("engine", "local") == "local":
            self.has_index = True
            search = {**search, "engine": "local", "index": str(self._places.index)}
        else:
            if name := search.get("api_key_env"):
                self._secret(name, "the key of the search engine")
            search |= {"url": self._places.upstream_url, "allow_networks": ["127.0.0.1"]}
            search.pop("index", None)
        return {**given, "search": search}

    def _secret(self, variable: str, name: str, before: str = "") -> None:
        self.variables[variable] = before + self._needles.make(name).word
        self.secrets.append(name)


def write_toml(tables: Mapping[str, Any], path: tuple[str, ...] = ()) -> str:
    """TOML of tables as `tomllib` reads them."""
    return "\n".join(_lines(tables, path)) + "\n"


def _lines(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    below = {name: value for name, value in table.items() if isinstance(value, dict) or _is_tables(value)}
    yield from (f"{_quote(name)} = {_value(value)}" for name, value in table.items() if name not in below)
    for name, value in below.items():
        header = ".".join(map(_quote, (*path, name)))
        if isinstance(value, dict):
            yield f"[{header}]"
            yield from _lines(value, (*path, name))
        else:
            for one in value:
                yield f"[[{header}]]"
                yield from _lines(one, (*path, name))


def _is_tables(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) for one in value)


def _value(value: object) -> str:
    match value:
        case str():
            return _quote(value)
        case bool():
            return str(value).lower()
        case list():
            return f"[{', '.join(map(_value, value))}]"
        case dict():
            return f"{{ {', '.join(f'{_quote(name)} = {_value(one)}' for name, one in value.items())} }}"
        case _:
            return str(value)


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
