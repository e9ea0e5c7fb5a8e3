"""Records of the control plane as /platform/api returns them."""

from typing import TypeVar

import msgspec

from cadenza.core.formats import rfc3339
from cadenza.core.money import format_dollars

T = TypeVar("T", bound=msgspec.Struct)


def to_record(kind: type[T], source: object, **given: object) -> T:
    """Make a record of this kind: fields by name from `source`, unless they are given.

    A time (`at`, `created_at`, …) becomes RFC 3339; an amount `x` is read from `x_nano` and becomes dollars.
    """
    found = {name: _read(source, name) for name in kind.__struct_fields__ if name not in given}
    return kind(**{name: value for name, value in found.items() if value is not msgspec.UNSET}, **given)


def _read(source: object, name: str) -> object:
    """UNSET for a field that the source does not have, and whose default remains."""
    if hasattr(source, f"{name}_nano"):
        return format_dollars(getattr(source, f"{name}_nano"))
    value: object = getattr(source, name, msgspec.UNSET)
    is_time = name == "at" or name.endswith("_at")
    return rfc3339(value) if is_time and isinstance(value, int) else value
