"""What differs between two versions of a class: routes field by field, and the character line by line. Pure."""

import difflib
from collections import Counter
from collections.abc import Iterator
from typing import Literal

import msgspec

from cadenza.core.classes import ClassVersion
from cadenza.core.records import Route

Kind = Literal["added", "removed", "changed"]
Place = tuple[str, str, int]  # provider, model, and which of the routes with both


class FieldChange(msgspec.Struct, frozen=True):
    """A setting of a route. `before` or `after` is null where the version does not have the route."""

    name: str
    before: str | None
    after: str | None


class RouteChange(msgspec.Struct, frozen=True):
    """A route that differs between two versions."""

    change: Kind
    route: str  # provider/model
    fields: tuple[FieldChange, ...]


class VersionDiff(msgspec.Struct, frozen=True, kw_only=True):
    """What differs between two versions of a class. `character` has the lines of a unified diff."""

    class_id: str
    before: int
    after: int
    routes: tuple[RouteChange, ...]
    character: tuple[str, ...]


def compare_versions(before: ClassVersion, after: ClassVersion) -> VersionDiff:
    lines = difflib.unified_diff(before.character.splitlines(), after.character.splitlines(), lineterm="", n=2)
    return VersionDiff(
        class_id=after.class_id,
        before=before.number,
        after=after.number,
        routes=tuple(_compare_routes(before, after)),
        character=tuple(line for line in lines if not line.startswith(("---", "+++"))),
    )


def _compare_routes(before: ClassVersion, after: ClassVersion) -> Iterator[RouteChange]:
    old, new = _by_place(before), _by_place(after)
    for place in [*old, *(place for place in new if place not in old)]:
        was, now = old.get(place), new.get(place)
        if was == now:
            continue
        change: Kind = "changed" if was and now else "added" if now else "removed"
        yield RouteChange(change, f"{place[0]}/{place[1]}", tuple(_compare_fields(was, now)))


def _by_place(version: ClassVersion) -> dict[Place, Route]:
    seen = Counter[tuple[str, str]]()
    found = dict[Place, Route]()
    for route in version.routes:
        place = (route.provider, route.model)
        found[*place, seen[place]] = route
        seen[place] += 1
    return found


def _compare_fields(was: Route | None, now: Route | None) -> Iterator[FieldChange]:
    """Of a route that is added or removed: the settings that are not the defaults."""
    before, after = _settings(was), _settings(now)
    usual = {field.name: _write(field.default) for field in msgspec.structs.fields(Route)}
    for name in before or after:
        if name in ("provider", "model"):
            continue
        old, new = before.get(name), after.get(name)
        is_usual = None in (old, new) and usual[name] in (old, new)
        if old != new and not is_usual:
            yield FieldChange(name, old, new)


def _settings(route: Route | None) -> dict[str, str]:
    return {} if route is None else {name: _write(value) for name, value in msgspec.structs.asdict(route).items()}


def _write(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=str).decode()
