"""No record that may carry content shows it: every record of the program is walked, so a new one must decide.

A record of a module that handles content derives from `Content`, or each of its fields that can hold text is
metadata: in METADATA by its name, or in METADATA_OF with its class.
"""

import dataclasses
import importlib
import inspect
import pkgutil
import re
import sys
import typing
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

import msgspec
import pytest

import cadenza
from cadenza.core.content import Content

pytestmark = pytest.mark.parts(reason="it walks the records of all parts")

NEEDLE = "n33dle-5d41"
# Packages and modules without content. All others may have it, until they are written here.
NO_CONTENT = {
    *(
        "app",
        "children",
        "cli",
        "config",
        "control",
        "fleet",
        "http",
        "ledger",
        "observe",
        "parts.books",
        "parts.embedded.commands",
        "parts.mail",
        "parts.otlp.settings",
        "parts.otlp.spans",
        "parts.otlp.trace_context",
        "parts.payments",
        "parts.postgres",
        "parts.retention",
        "parts.valkey",
        "process",
        "routing",
        "terminal",
    ),
    *(
        "server",
        "store",
        "core.activity",
        "core.attempts",
        "core.breaker",
        "core.classes",
        "core.config_keys",
        "core.orders",
        "core.email",
    ),
    *("core.money", "core.price_schedules", "core.rates", "core.records", "core.shares"),
    *("core.spans", "core.usage_report"),
    *(
        "parts.embedded.commands",
        "parts.evaluation.evaluation_run",
        "parts.evaluation.trial",
        "parts.grounding.charges",
        "parts.grounding.settings",
    ),
    *("parts.evaluation.verdict", "parts.evaluation.verdict_rows"),
    *("parts.grounding.search.engines.build", "upstreams.dialects", "upstreams.known"),
    *("parts.site.account", "parts.site.charts", "parts.site.cookies", "parts.site.docs", "parts.site.joining"),
    *("parts.site.mailer", "parts.site.money", "parts.site.operator", "parts.site.render", "parts.site.routes"),
    *("parts.site.settings", "parts.site.sign_in", "parts.site.tables", "parts.site.tokens", "parts.site.visit"),
}
METADATA = {"account_id", "class_id", "key_id", "model", "object", "provider", "request_id"}
METADATA_OF = {  # what neither a client nor a model writes: it comes from the config, the program or a fixed set
    "Aliases": {"given"},
    "Evaluated": {"advice"},
    "AskedSide": {"dialect"},
    "Candidate": {"codec", "languages"},  # a charset
    "ChatCost": {"cost"},
    "ChatSwitches": {"note", "parts"},
    "Endpoint": {"headers", "methods", "name", "path", "scope"},
    "EngineApi": {"key_refused", "name", "reasons"},  # words of ours
    "Model": {"id", "owned_by"},
    "Offer": {"image_classes"},
    "SearchTerms": {"engine"},
    "Service": {"made", "on_reload"},
    "Part": {"commands", "heading", "name", "owns", "packages"},
    "ParserFault": {"error", "module"},  # names of ours, checked by a pattern
    "Probe": {"advice", "detail", "models", "owner", "windows"},
    "Ready": {"url"},
    "Suite": {"digest", "name"},
    "SuiteRun": {"character", "upstreams"},
    "Task": {"character", "protocol"},  # of the class; a name of ours
    "_Model": {"id", "max_model_len", "owned_by"},
}


def import_all() -> None:
    for module in pkgutil.walk_packages(cadenza.__path__, "cadenza."):
        if ".migrations." not in module.name:
            importlib.import_module(module.name)


def records() -> Iterator[type]:
    """All Structs, NamedTuples and dataclasses of the program."""
    import_all()
    for name, module in sorted(sys.modules.items()):
        if name == "cadenza" or name.startswith("cadenza."):
            for found in vars(module).values():
                if inspect.isclass(found) and found.__module__ == name and fields_of(found) is not None:
                    yield found


def fields_of(record: type) -> tuple[str, ...] | None:
    """None if it is no record."""
    if dataclasses.is_dataclass(record):
        return tuple(field.name for field in dataclasses.fields(record))
    if issubclass(record, msgspec.Struct):
        return record.__struct_fields__
    return getattr(record, "_fields", None) if issubclass(record, tuple) else None


def can_hold_text(kind: Any) -> bool:
    """Whether a value of this type may show text of its own. Other records and objects are judged by themselves."""
    if typing.get_origin(kind) in {typing.Literal, Callable} or kind in {msgspec.UnsetType, ...}:
        return False
    if arguments := typing.get_args(kind):
        return any(map(can_hold_text, arguments))
    if not inspect.isclass(kind) or kind in {object, msgspec.Raw}:  # Any, a name that was not resolved
        return True
    if kind.__module__.partition(".")[0] == "cadenza":
        return "__repr__" in vars(kind) and fields_of(kind) is None
    return kind.__repr__ is not object.__repr__ and not issubclass(kind, (int, float, Enum, type(None)))


def undecided(record: type) -> list[str]:
    """The fields of a record that may hold content and would show it."""
    if issubclass(record, Content):
        return []
    metadata = METADATA | METADATA_OF.get(record.__name__, set())
    hints = typing.get_type_hints(record)
    return [name for name in fields_of(record) or () if name not in metadata and can_hold_text(hints[name])]


def handles_content(record: type) -> bool:
    module = record.__module__.removeprefix("cadenza.")
    parents = {module, *(module[: at.start()] for at in re.finditer(r"\.", module))}
    return not parents & NO_CONTENT


def test_every_record_of_a_module_with_content_has_decided() -> None:
    """A record whose field may carry content is Content, or the field is in a table of metadata."""
    found = {f"{one.__module__}.{one.__name__}": undecided(one) for one in records() if handles_content(one)}
    found = {name: fields for name, fields in found.items() if fields}
    assert not found, (
        f"These fields could show content in an error or a log line: {found}. Derive "
        "the record from cadenza.core.content.Content; or add the fields to METADATA_OF in this file, if neither "
        "a client nor a model writes them; or the module to NO_CONTENT, if none of its records has content."
    )


def test_the_tables_name_what_exists() -> None:
    """No entry of a table outlives its module, its class or its field."""
    known = {one.__name__: set(fields_of(one) or ()) for one in records() if handles_content(one)}
    gone = {name: fields - known.get(name, set()) for name, fields in METADATA_OF.items()}
    assert [name for name, fields in gone.items() if fields] == []
    assert [name for name in NO_CONTENT if f"cadenza.{name}" not in sys.modules] == []


def test_no_content_record_shows_what_it_carries() -> None:
    """With a needle in every field, as text, bytes or inside of others, no form of the record's text has it."""
    held: list[object] = [NEEDLE, NEEDLE.encode(), memoryview(NEEDLE.encode()), [NEEDLE], {NEEDLE: NEEDLE}, (NEEDLE,)]
    found = [record for record in records() if issubclass(record, Content)]
    assert len(found) > 100
    for record in found:
        for value in held:
            one = record(**dict.fromkeys(fields_of(record) or (), value))
            error = ValueError(one)
            shown = f"{one!r} {one!s} {one} {[one]} {error!r} {error} {[*one.__rich_repr__()]}"
            assert NEEDLE not in shown, record
