"""The one walker: reads tables as the sections declare them, with the environment, and collects every mistake.

A value with a mistake is replaced by the default or the example, so that the other mistakes are found too.
"""

import re
from collections.abc import Callable, Collection, Mapping
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Self, TypeVar, Union, get_args, get_origin

import msgspec

from cadenza.config.checks import VARIABLE_NAME, Secret, read_table
from cadenza.config.lines import KeyPath, find_lines
from cadenza.config.proxies import proxy_for
from cadenza.core.config_keys import (
    BOOLEAN,
    EXISTING_FILE,
    PATH,
    TEXT,
    CheckError,
    ConfigTable,
    Contents,
    Like,
    Switch,
    ValueCheck,
    Variable,
    one_of,
    suggest,
    type_name,
)
from cadenza.core.records import AUTO, CLASSES, RESERVED_CLASS

T = TypeVar("T")
S = TypeVar("S", bound=ConfigTable)
Table = dict[str, Any]

BY_CLASS = ("prices", "classes")  # tables with one table for each class
NO_CLASS = {
    RESERVED_CLASS: "this class is reserved and cannot be configured",
    AUTO: "this is not a class: it stands for the class that the account prefers",
}
GONE = {  # keys and values of release 0.1.0
    "engine = local": "there is no search of local documents now: name an engine of the web, or remove the table",
    "search_decision": "the words of a message decide now, for every class: remove this line",
    "index": "there is no search of local documents now: remove this line",
    "watch": "there is no watch now: evaluate the class each night instead, and remove this table",
}
SECRET_WORDS = {"key", "token", "secret", "password"}


class ConfigKey(msgspec.Struct, frozen=True):
    """A key as its section declares it. `field` is its name in the struct; `section` the struct of a table."""

    name: str
    field: str
    sentence: str
    default: object
    check: ValueCheck | None
    like: Like | None = None
    source: Variable | Contents | None = None
    section: type[ConfigTable] | None = None
    shape: Literal["value", "path", "table", "tables", "named"] = "value"
    switch: Switch | None = None

    @property
    def is_required(self) -> bool:
        return self.default is msgspec.NODEFAULT

    @property
    def example(self) -> object:
        """For the example file, and for what depends on a value that is missing."""
        return self.default if self.like is None else self.like.value


@cache
def keys_of(section: type[ConfigTable]) -> dict[str, ConfigKey]:
    """The keys of a table, by name, in their order."""
    fields = msgspec.structs.fields(section)
    return {one.encode_name: _key(one) for one in fields if get_origin(one.type) is Annotated}


def _key(declared: msgspec.structs.FieldInfo) -> ConfigKey:
    kind, *marks = get_args(declared.type)
    found = {type(mark): mark for mark in marks}
    variable, sentence = found.get(Variable), found.get(str, "")
    if get_origin(kind) in (Union, UnionType):
        kind = get_args(kind)[0]  # the other is None
    shape, section = _shape(kind)
    check = VARIABLE_NAME if variable else found.get(ValueCheck) or _usual_check(kind)
    default = declared.default if declared.default_factory is msgspec.NODEFAULT else declared.default_factory()
    return ConfigKey(
        name=declared.encode_name,
        field=declared.name,
        sentence=f"the variable with {variable.what}" if variable else sentence,
        default=default,
        check=None if section else check,
        like=found.get(Like) or (variable and Like(variable.example, is_off=default is None)),
        source=variable or found.get(Contents),
        section=section,
        shape=shape,
        switch=found.get(Switch),
    )


def _shape(kind: type) -> tuple[Literal["value", "path", "table", "tables", "named"], type[ConfigTable] | None]:
    last = (get_args(kind) or (kind,))[0 if get_origin(kind) is tuple else -1]
    if not (isinstance(last, type) and issubclass(last, ConfigTable)):
        return ("path" if kind is Path else "value"), None
    return ("tables" if get_origin(kind) is tuple else "named" if get_origin(kind) is dict else "table"), last


def _usual_check(kind: type) -> ValueCheck:
    if get_origin(kind) is Literal:
        return one_of(*get_args(kind))
    return {bool: BOOLEAN, Path: PATH}.get(kind, TEXT)


class ConfigReader:
    """One file, its environment, and the mistakes found so far: for each key the first one."""

    def __init__(
        self, source_text: str, folder: Path, environ: Mapping[str, str], tables: Collection[str] = ()
    ) -> None:
        self.folder = folder  # relative paths start here
        self.tables = tables  # the names of those in the file
        self.environ = environ
        self.missing_secrets: list[str] = []
        self.site_url: str | None = None
        self._lines = find_lines(source_text)
        self._problems: dict[KeyPath, str] = {}

    def read(self, section: type[S], raw: object, at: KeyPath = ()) -> S:
        """The section that a table describes."""
        keys, values = keys_of(section), Table()
        if not isinstance(raw, dict):
            self.problem(at, f"must be a table, not {type_name(raw)}")
        table = raw if isinstance(raw, dict) else Table()
        for name in (name for name in table if name not in keys):
            self.problem((*at, name), _unknown(name, keys))
        for key in keys.values():
            here = (*at, key.name)
            if key.name in table:
                values[key.field] = self.attempt(here, self._value, key, table[key.name], here)
            elif key.is_required and table is raw:
                self.problem(here, f"missing; it must be {key.check.rule if key.check else 'a table'}")
            elif key.shape == "table" and isinstance(key.default, ConfigTable):
                values[key.field] = self._value(key, {}, here)
            elif key.shape == "path" and key.default is not None:
                values[key.field] = self.folder / str(key.default)
        is_whole = None not in values.values()
        stand_ins = {key.field: key.example for key in keys.values() if key.is_required}
        values = stand_ins | {name: value for name, value in values.items() if value is not None}
        if "given" in section.__struct_fields__:
            values["given"] = frozenset(table)
        made = section(**values)
        for name, sentence in made.mistakes() if table is raw else ():
            if name or is_whole:
                self.problem((*at, *filter(None, name.split("."))), sentence)
        filled = self._filled(keys, made, at)
        return msgspec.structs.replace(made, **filled) if filled else made

    def attempt(self, key: KeyPath, function: Callable[..., T], *given: object) -> T | None:
        """What the function returns. If it raises ValueError, that is a problem of this key."""
        try:
            return function(*given)
        except ValueError as mistake:
            self.problem(key, str(mistake))
            return None

    def proxy(self, url: str | None, at: KeyPath) -> Secret | None:
        """The proxy that the environment names for an address."""
        proxy = self.attempt(at, proxy_for, url, self.environ) if url else None
        return Secret(proxy) if proxy else None

    def problem(self, key: KeyPath, sentence: str) -> None:
        self._problems.setdefault(key, sentence)

    def problems(self) -> list[str]:
        """In the order of the file; problems without a line come last."""
        lines = {key: self._nearest_line(key) for key in self._problems}
        ordered = sorted(lines, key=lambda key: (lines[key] is None, lines[key]))
        return [
            f"{f'line {lines[key]}: ' if lines[key] else ''}{_dotted(key)}: {self._problems[key]}" for key in ordered
        ]

    def line_of(self, key: KeyPath) -> int | None:
        """The line where this key first appears in the file; None if it does not."""
        return self._lines.get(key)

    def _nearest_line(self, key: KeyPath) -> int | None:
        """The line of the key or, for a key inside an inline table, of the nearest key or table around it."""
        return next((self._lines[key[:n]] for n in range(len(key), 0, -1) if key[:n] in self._lines), None)

    def _value(self, key: ConfigKey, value: object, at: KeyPath) -> object:
        if key.section and key.shape == "tables":
            return tuple(self.read(key.section, item, (*at, index)) for index, item in enumerate(_tables(value)))
        if key.section and key.shape == "named":
            return self._named(key.section, key.name in BY_CLASS, read_table(value), at)
        if key.switch and not isinstance(value, dict):
            if value is not False:
                raise CheckError(f"must be false, or a table with {key.switch.name}")
            value = {key.switch.name: "off"}
        if key.section:
            return self.read(key.section, value, at)
        assert key.check
        if gone := GONE.get(f"{key.name} = {value}"):
            raise CheckError(gone)
        found = key.check.read(value)
        if key.shape != "path":
            return found
        path = self.folder / str(found)
        if key.check is EXISTING_FILE and not path.is_file():
            raise CheckError(f"there is no file at {path}")
        return path

    def _named(self, section: type[S], is_by_class: bool, table: Table, at: KeyPath) -> dict[str, S]:
        tables = {name: self.attempt((*at, name), read_table, one) for name, one in table.items()}
        known = {name: one for name, one in tables.items() if not is_by_class or name in CLASSES}
        for name in (name for name in table if name not in known):
            self.problem((*at, name), NO_CLASS.get(name) or f"unknown class; {suggest(name, CLASSES)}")
        return {name: self.read(section, one, (*at, name)) for name, one in known.items() if one is not None}

    def _filled(self, keys: Mapping[str, ConfigKey], made: ConfigTable, at: KeyPath) -> Table:
        """The fields whose values come from a variable or a file that a key names."""
        filled = Table()
        for key in keys.values():
            here, named = (*at, key.name), getattr(made, key.field)
            if named is None or here in self._problems:
                continue
            if isinstance(key.source, Variable):
                filled[key.field.removesuffix("_env")] = self.secret(key.source, str(named), here)
            elif isinstance(key.source, Contents):
                filled[key.source.target] = self.attempt(here, read_contents, named, key.source)
        return filled

    def secret(self, source: Variable, variable: str, at: KeyPath) -> Secret | None:
        """The secret in an environment variable. One that is not set yet is missing, which is no mistake here."""
        value = self.environ.get(variable, "").strip()
        if not value:
            words = f"the environment variable {variable} is unset or empty; put {source.what} into it."
            self.missing_secrets.append(f"{_dotted(at)}: {words}")
        elif not re.fullmatch(source.pattern, value):
            self.problem(at, source.rule)
        return Secret(value) if value else None


class PartTable(ConfigTable, frozen=True):
    """A table of a part. It is in the settings if the file has it."""

    def completed(self, _reader: ConfigReader) -> Self:
        """The same, with what its own keys do not say."""
        return self


def _unknown(name: str, keys: Mapping[str, ConfigKey]) -> str:
    """A name like that of a secret is refused with the place where secrets belong."""
    places = [key.name for key in keys.values() if isinstance(key.source, Variable) or key.name.endswith("_key_file")]
    if name.rsplit("_", maxsplit=1)[-1] in SECRET_WORDS:
        return f"a secret must not be in this file; use {' or '.join(places) or 'the environment'}"
    return GONE.get(name) or f"unknown key; {suggest(name, keys)}"


def _tables(value: object) -> list[Table]:
    if isinstance(value, dict):
        raise CheckError("must be a list of tables: write its header in double brackets")
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise CheckError("must be a list of tables")
    return value


def read_contents(path: Path, source: Contents) -> Secret:
    """The text of a file that a key names, without blanks around it."""
    try:
        found = read_file(path).strip()
    except CheckError as mistake:
        raise CheckError(f"the file {mistake}") from None
    if not found or "\0" in found:
        raise CheckError("the file is empty or contains null characters")
    if not re.fullmatch(source.pattern, found):
        raise CheckError(source.rule)
    return Secret(found)


def read_file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise CheckError(f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CheckError("is not UTF-8 text") from None


def _dotted(key: KeyPath) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key).removeprefix(".")
