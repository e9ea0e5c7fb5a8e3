"""Fields of what is ordered from the service, declared once, as keys of the config are, for every way to order it.

A field is `Annotated[type, check, Shown(…), "sentence"]` of a frozen Struct. Its check, the options of a command, the
reading of a form, OpenAPI and the fingerprint of an order follow. An amount `x_nano` is called `x`, and typed in
dollars. Of a Struct in a Struct the first field has the outer name: `cap` and `cap_period`.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import chain
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, UNSET, UnsetType
from msgspec.structs import replace

from cadenza.core.config_keys import ValueCheck, one_of
from cadenza.core.errors import ControlError
from cadenza.core.formats import read_field
from cadenza.core.money import parse_dollars

NANO = "_nano"
REFERENCE = "reference"  # makes an order idempotent, and is no part of what is ordered

T = TypeVar("T", bound=msgspec.Struct)


class Shown(msgspec.Struct, frozen=True):
    """How people see a field: its label on pages, its option, and in words what holds where it is not given."""

    label: str = ""
    option: str = ""
    metavar: str = "NUMBER"
    usual: str = ""
    removed_by: str = "none"  # the word that removes a value


class OrderField(msgspec.Struct, frozen=True):
    """One value of an order, which is at `path`."""

    name: str
    path: tuple[str, ...]
    kind: Any  # str, int or float
    sentence: str
    check: ValueCheck
    shown: Shown
    default: Any  # UNSET: none; NODEFAULT: it must be given
    words: tuple[str, ...] = ()  # of a Literal
    is_list: bool = False
    is_optional: bool = False

    @property
    def option(self) -> str:
        return self.name if self.is_required else "--" + (self.shown.option or self.name).replace("_", "-")

    @property
    def is_required(self) -> bool:
        return self.default is NODEFAULT

    def read(self, typed: Any) -> object:  # noqa: ANN401 a text, or several
        """What was typed, as a value. An empty text, or the word for it, removes a value that may be absent."""
        value = typed.strip() if isinstance(typed, str) else typed
        if self.is_optional and value in {"", self.shown.removed_by}:
            return None
        if self.kind is str:
            return self._check(value) if self.words else value
        is_amount = self.path[-1].endswith(NANO)
        try:
            return parse_dollars(value.removeprefix("$")) if is_amount else self.kind(value)
        except ValueError as error:
            raise FieldMistake(self, str(error) if is_amount else f"must be {self.check.rule}, not {value!r}") from None

    def verify(self, value: Any) -> Any:  # noqa: ANN401 what the field can be
        """The value that its check returns; of a list, the sorted values."""
        if value is None and self.is_optional:
            return None
        return sorted(map(self._check, value)) if self.is_list else self._check(value)

    def _check(self, value: Any) -> Any:  # noqa: ANN401
        try:
            return self.check.read(value)
        except ValueError as error:
            wrong = f", not {value!r}" if "enum" in self.check.schema else ""
            raise FieldMistake(self, f"{error}{wrong}") from None


class FieldMistake(ControlError):
    """A value that cannot be used. The sentence follows the name of the field, which each way to order has its own."""

    def __init__(self, field: OrderField, sentence: str, name: str = "") -> None:
        super().__init__(f"{name or '.'.join(field.path).removesuffix(NANO)}: {sentence}.")
        self.field, self.sentence = field, sentence

    def named(self, name: str) -> "FieldMistake":
        return FieldMistake(self.field, self.sentence, name)


@cache
def fields_of(order: type[msgspec.Struct]) -> tuple[OrderField, ...]:
    """The fields that have a sentence, in their order."""
    return tuple(chain.from_iterable(map(_fields, msgspec.structs.fields(order))))


def _fields(declared: msgspec.structs.FieldInfo) -> Iterator[OrderField]:
    kind, *marks = get_args(declared.type) if get_origin(declared.type) is Annotated else (declared.type,)
    kinds = get_args(kind) if NoneType in get_args(kind) or UnsetType in get_args(kind) else (kind,)
    value = next(one for one in kinds if one not in {NoneType, UnsetType})
    found, is_optional = {type(mark): mark for mark in marks}, NoneType in kinds
    if isinstance(value, type) and issubclass(value, msgspec.Struct):
        for number, one in enumerate(fields_of(value)):
            path, is_first = (declared.name, *one.path), number == 0
            name, default = (declared.name, UNSET) if is_first else ("_".join(path), one.default)
            yield replace(one, name=name, path=path, default=default, is_optional=is_first and is_optional)
    elif str in found:
        words = get_args(value) if get_origin(value) is Literal else ()
        yield OrderField(
            name=declared.name.removesuffix(NANO),
            path=(declared.name,),
            kind=value if value in {int, float} else str,
            sentence=found[str],
            check=one_of(*words) if words else found[ValueCheck],
            shown=found.get(Shown) or Shown(),
            default=UNSET if declared.default is None else declared.default,
            words=words,
            is_list=get_origin(value) not in {None, Literal},
            is_optional=is_optional,
        )


def check_order(order: msgspec.Struct) -> dict[str, object]:
    """All that is ordered, as the checks return it: a repetition has the same. FieldMistake for what cannot be used."""
    checked = {}
    for one in fields_of(type(order)):
        value: Any = order
        for name in one.path:
            value = getattr(value, name, UNSET)
        if value is not UNSET and one.name != REFERENCE:
            checked[one.name] = one.verify(value)
    return checked


def read_order(kind: type[T], typed: Mapping[str, object]) -> T:
    """The order that was typed, by the names of its fields. FieldMistake for what cannot be read."""
    values: dict[str, Any] = {}
    for one in (one for one in fields_of(kind) if one.name in typed):
        value, outer = one.read(typed[one.name]), one.path[0]
        if len(one.path) == 1:
            values[outer] = value
        elif one.name == outer:
            values[outer] = None if value is None else {one.path[1]: value}
        elif values.get(outer):
            values[outer][one.path[1]] = value
    return msgspec.convert(values, kind)


def typed_values(kind: type[msgspec.Struct], record: object = None) -> dict[str, Any]:
    """The fields of a form: as typed for this record, or as they are before anything is typed."""
    return {one.name: _typed(one, record) for one in fields_of(kind)}


def _typed(one: OrderField, record: object) -> object:
    if record is None:
        return [] if one.is_list else "" if one.default in {UNSET, NODEFAULT} else str(one.default)
    for name in one.path:
        record = read_field(record, name)
    return "" if record in {None, UNSET} else str(record).removesuffix(".0") if one.kind is float else str(record)


def copied(kind: type[T], *sources: msgspec.Struct, **others: object) -> T:
    """A record with the fields of the same names that are set in the sources, the last of them first, or given."""
    found = ((name, getattr(source, name)) for source in sources for name in _shared(kind, type(source)))
    return kind(**{name: value for name, value in found if value is not UNSET} | others)


@cache
def _shared(kind: type[msgspec.Struct], source: type[msgspec.Struct]) -> list[str]:
    return [name for name in kind.__struct_fields__ if name in source.__struct_fields__]


def describe_fields(kinds: Iterable[type[msgspec.Struct]], schemas: dict[str, Any]) -> None:
    """Add the sentences and the bounds of their fields to the JSON schemas of orders."""
    for kind in kinds:
        for one in (one for one in fields_of(kind) if len(one.path) == 1):
            found = schemas[kind.__name__]["properties"][one.name]
            found |= {"description": one.sentence, **({"items": one.check.schema} if one.is_list else one.check.schema)}
