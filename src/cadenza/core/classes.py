"""What stands behind a class: numbered versions of routes and character, and which of them is served.

A version never changes. The state of a class names the version that is served.
"""

import hashlib
import re
from typing import Annotated, Literal

import msgspec

from cadenza.core.config_keys import FRACTION, ConfigTable, Like, above_zero, list_of, whole
from cadenza.core.public import Public
from cadenza.core.records import Route

Origin = Literal["config", "promotion"]
TAG = re.compile(r"[a-z0-9_-]{1,40}")


def read_tag(text: str) -> str:
    if not TAG.fullmatch(text):
        raise ValueError
    return text


class ClassVersion(Public, msgspec.Struct, frozen=True, kw_only=True):
    """A version of a class. `routes` are sorted by order."""

    class_id: str
    number: int = 0  # 0: not recorded yet
    routes: tuple[Route, ...]
    character: str
    origin: Origin = "config"
    created_at: int = 0
    actor: str = ""
    verdict_id: str | None = None

    @property
    def digest(self) -> bytes:
        """The same for versions of a class with the same routes and the same character.

        Fields with their default value are left out, so that a new field changes no digest.
        """
        routes = msgspec.json.decode(msgspec.json.encode(self.routes), type=tuple[Route, ...])  # 60 becomes 60.0
        plain = (self.class_id, [_without_defaults(route) for route in routes], self.character)
        return hashlib.sha256(msgspec.json.encode(plain)).digest()

    @property
    def main_routes(self) -> tuple[Route, ...]:
        """The routes that are tried first. The others are fallbacks."""
        return tuple(route for route in self.routes if route.order == self.routes[0].order)

    def with_candidate(self, candidate: Route) -> "ClassVersion":
        """The version that a promotion records: the candidate instead of the main routes; fallbacks stay."""
        place = (candidate.provider, candidate.model)
        main, first = self.main_routes, msgspec.structs.replace(candidate, order=self.routes[0].order, weight=1)
        fallbacks = [one for one in self.routes if one not in main and (one.provider, one.model) != place]
        return msgspec.structs.replace(
            self, number=0, routes=(first, *fallbacks), origin="promotion", created_at=0, actor="", verdict_id=None
        )


class GateLimits(ConfigTable, frozen=True, kw_only=True):
    """What a verdict must show before its candidate is promoted. Where one is None, the gate has its own."""

    min_score: Annotated[float | None, FRACTION, Like(0.8), "of the candidate, from 0 to 1"] = None
    max_losses: Annotated[int | None, whole(0), Like(5), "cases that the incumbent answers better"] = None
    max_cost_ratio: Annotated[
        float | None, above_zero(), Like(1.2), "candidate / incumbent, by cost_input and cost_output; 1.5 without it"
    ] = None
    max_p95_ratio: Annotated[
        float | None, above_zero(), Like(1.5), "of the time to the whole answer, 95th percentile; 2 without it"
    ] = None
    must_pass: Annotated[
        tuple[str, ...],
        list_of('tags of a suite, like ["tools", "json"]', read_tag),
        Like(["tools"]),
        "the candidate passes every case with these tags that the incumbent passes, in every run",
    ] = ()


class ConfiguredClass(msgspec.Struct, frozen=True):
    """A class as the config has it. The built-in default pins nothing."""

    version: ClassVersion  # without a number
    is_pinned: bool


class ClassState(msgspec.Struct, frozen=True, kw_only=True):
    """Which version of a class is served. `revision` grows with every change."""

    version: ClassVersion
    earlier: tuple[int, ...] = ()  # the numbers of the versions that were served before it, newest first
    is_rolled_back: bool = False  # a rollback made it the version that is served
    is_adopted: bool = False  # the store decides, even where the config names routes
    was_promoted: bool = False  # a candidate was promoted at any time
    revision: int = 1
    changed_at: int = 0

    @property
    def previous(self) -> int | None:
        """The number of the version that was served before it."""
        return self.earlier[0] if self.earlier else None

    @property
    def return_targets(self) -> tuple[int, ...]:
        """The versions that a rollback may serve: older ones that were served, and the one from before."""
        return tuple(one for one in self.earlier if one < self.version.number or one == self.previous)

    def serving(self, version: ClassVersion, *, is_rollback: bool = False) -> "ClassState":
        """The state in which this version is served."""
        if version.number == self.version.number:
            return self
        served = dict.fromkeys((self.version.number, *self.earlier))
        earlier = tuple(one for one in served if one != version.number)
        return msgspec.structs.replace(self, version=version, earlier=earlier, is_rolled_back=is_rollback)


def _without_defaults(record: msgspec.Struct) -> dict[str, object]:
    fields = {field.name: (getattr(record, field.name), field.default) for field in msgspec.structs.fields(record)}
    return {
        name: _without_defaults(value) if isinstance(value, msgspec.Struct) else value
        for name, (value, default) in fields.items()
        if value != default
    }
