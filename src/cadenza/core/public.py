"""Records as other programs read them: times are RFC 3339, and amounts are decimal strings of dollars.

The type for them is derived from that of the record: `created_at` becomes text, and `limit_nano` becomes the text
`limit`.
"""

from functools import cache, reduce
from operator import or_
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec

from cadenza.core.content import Content
from cadenza.core.formats import read_field, rfc3339
from cadenza.core.money import format_dollars

NANO = "_nano"

T = TypeVar("T", bound=msgspec.Struct)


class Public:
    """The first base of a Struct whose times and amounts are integers here and text for other programs."""

    __slots__ = ()


@cache
def public_type(kind: Any) -> Any:  # noqa: ANN401 annotations
    """The annotation for other programs; the same one where nothing in it is Public."""
    origin, parts = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _public_struct(kind)
    if not origin or origin is Literal:
        return kind
    found = tuple(public_type(part) for part in parts)
    if found == parts:
        return kind
    return reduce(or_, found) if origin in {Union, UnionType} else origin[found]


def _public_struct(kind: type[msgspec.Struct]) -> type[msgspec.Struct]:
    fields = sorted(msgspec.structs.fields(kind), key=lambda one: one.name in _inherited(kind))
    types = {one.name: _text_type(one.type) if _is_text(kind, one.name) else public_type(one.type) for one in fields}
    if all(types[one.name] == one.type for one in fields):
        return kind
    return msgspec.defstruct(
        kind.__name__,
        [(_name(kind, one.name), types[one.name], msgspec.field(default=one.default)) for one in fields],
        bases=(Content, msgspec.Struct) if issubclass(kind, Content) else None,
        namespace={"__doc__": kind.__doc__},
        kw_only=True,
    )


def _inherited(kind: type[msgspec.Struct]) -> set[str]:
    """The fields of bases that are not Public: they come last."""
    bases = (one for one in kind.__mro__ if issubclass(one, msgspec.Struct) and not issubclass(one, Public))
    return {name for base in bases for name in base.__struct_fields__}


def _text_type(kind: Any) -> Any:  # noqa: ANN401 annotations
    return str | None if type(None) in get_args(kind) else str


def to_public(kind: Any, value: Any) -> Any:  # noqa: ANN401 an annotation, and what it annotates
    """What a record of this type has for other programs, and no more; or each record of a list."""
    if public_type(kind) == kind:
        return value
    if isinstance(value, list | tuple):
        return [to_public(kind, one) for one in value]
    struct = _struct_in(kind)
    if struct is None or not isinstance(value, msgspec.Struct):
        return value
    found = {one.name: (one.type, getattr(value, one.name)) for one in msgspec.structs.fields(struct)}
    values = {
        _name(struct, name): _text(name, one) if _is_text(struct, name) else to_public(part, one)
        for name, (part, one) in found.items()
    }
    return public_type(struct)(**values)


def public_values(kind: type[msgspec.Struct], value: msgspec.Struct) -> dict[str, Any]:
    """The same by name, without the name of the kind: for lists of commands."""
    found = msgspec.to_builtins(to_public(kind, value))
    return {name: one for name, one in found.items() if name != "object"}


def to_record(kind: type[T], *sources: object, **given: object) -> T:
    """Make a record for other programs: fields by name from the first source that has them, unless they are given.

    A field that no source has keeps its default.
    """
    found = ((name, read_field(source, name)) for source in reversed(sources) for name in kind.__struct_fields__)
    return kind(**{name: value for name, value in found if value is not msgspec.UNSET} | given)


def _text(name: str, value: int | None) -> str | None:
    if value is None:
        return None
    return format_dollars(value) if name.endswith(NANO) else rfc3339(value)


def _name(kind: type[msgspec.Struct], name: str) -> str:
    return name.removesuffix(NANO) if _is_text(kind, name) else name


def _is_text(kind: type[msgspec.Struct], name: str) -> bool:
    """Whether the integer of this name is text for other programs."""
    return issubclass(kind, Public) and (name == "at" or name.endswith(("_at", NANO)))


def _struct_in(kind: Any) -> type[msgspec.Struct] | None:  # noqa: ANN401 an annotation
    """The struct of an annotation, which may be optional, or a list of it."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind
    return next(filter(None, map(_struct_in, get_args(kind))), None)
