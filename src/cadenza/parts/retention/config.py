"""The config of an audited service: the user's own file, with everything outside of this machine replaced.

Providers, the search engine and the trace collector become the audit's upstream, with the dialects of the real ones.
Store and shared state are the audit's own. Secrets are replaced by canaries: no real one is used. The tables of
other parts are left out. Rates are raised, and there are few slots, so that a request can be refused for want of one.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cadenza import parts
from cadenza.config import Settings
from cadenza.config.kinds import kind_of
from cadenza.core.records import CLASSES
from cadenza.parts.retention.canaries import CanarySet, Template

Table = dict[str, Any]

PROVIDER = "built-in"  # for classes whose routes are in the store, and for a model on this machine
MODEL = "audit-model"
CONCURRENCY = 4
LIMITS = {"requests_per_second": 10_000.0, "burst": 10_000, "concurrency": CONCURRENCY}
REPLACED = {name for part in parts.having("cases") for name in part.tables}
LEFT_OUT = tuple(name for name in parts.TABLES if name not in REPLACED)
FILE_KEYS = ("file", "suite")


class PrivateConfig:
    """The tables of the private file, the variables that it names, and what of the user's file is not in it.

    `given` is the user's file as it was parsed; `settings` are the same, checked.
    """

    def __init__(self, given: Mapping[str, Any], settings: Settings, canaries: CanarySet) -> None:
        self.variables: dict[str, str] = {}
        self.secrets: list[str] = []  # the names of the canaries in them
        self.notes = [f"[{name}] is left out" for name in LEFT_OUT if name in given]
        self._settings = settings
        self._canaries = canaries
        folder = settings.source.parent if settings.source else Path.cwd()
        self._given: Table = _absolute({name: one for name, one in given.items() if name not in LEFT_OUT}, folder)

    def tables(self, upstream_url: str, store_url: str, shared_state_url: str) -> Table:
        given = self._given
        names = ("server", "providers", "classes")
        server, providers, classes = (given.get(name, {}) for name in names)
        self.secret(server.get("metrics_token_env"), "the token for /metrics")
        if any(kind_of(one.kind).is_local for one in self._settings.providers.values()):
            self.notes.append("no model runs on this machine: the built-in upstream answers for it")
        made = {PROVIDER: {}, **providers}
        return (
            given
            | {
                "server": {**server, "host": "127.0.0.1", "port": 0, "drain_s": 5},
                "store": {**given.get("store", {}), "url": store_url},
                "shared_state": {"url": shared_state_url},
                "limits": {**given.get("limits", {}), **LIMITS},
                "providers": {name: self._provider(name, one, upstream_url) for name, one in made.items()},
                "classes": {class_id: _class(classes.get(class_id, {})) for class_id in CLASSES},
            }
            | self._of_parts(upstream_url)
        )

    def _of_parts(self, upstream_url: str) -> Table:
        tables = Table()
        for part in parts.having("cases"):
            if private := part.load("cases").AUDIT.private:
                tables |= private(
                    {name: self._given[name] for name in part.tables if name in self._given}, self, upstream_url
                )
        return tables

    def _provider(self, name: str, given: Table, upstream_url: str) -> Table:
        found = self._settings.providers.get(name)
        is_local = kind_of(given.get("kind", "")).is_local
        kept = {key: one for key, one in given.items() if key != "api_key_file" and not is_local}
        if "api_key_file" in given:
            kept["api_key_env"] = f"CADENZA_AUDIT_KEY_{len(self.secrets)}"
        self.secret(kept.get("api_key_env"), f"the key of the provider {name}")
        base_url = f"{upstream_url}/{'openai' if 'api_version' in given else 'v1'}"
        dialect = found.dialect if found else "plain"
        return {**kept, "kind": "openai", "base_url": base_url, "retention": "zero", "dialect": dialect}

    def secret(self, variable: str | None, name: str, before: str = "") -> None:
        if variable:
            self.variables[variable] = before + self._canaries.make(name).word
            self.secrets.append(name)


def _class(given: Table) -> Table:
    """Every class has routes."""
    routes = given.get("routes") or [{"provider": PROVIDER}]
    return {**given, "routes": [{"model": MODEL, **route} for route in routes]}


def _absolute(value: Template, folder: Path, name: str = "") -> Template:
    """The same with the names of files, which are relative to the user's own, made absolute."""
    if isinstance(value, dict):
        return {key: _absolute(one, folder, key) for key, one in value.items()}
    return str(folder / value) if name in FILE_KEYS else value
