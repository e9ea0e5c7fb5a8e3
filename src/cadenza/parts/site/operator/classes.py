"""The page of one class: what is served, versions and their differences, history, rollback.

A rollback needs a recent proof. Its form carries the version that the page showed as served: if another is served
meanwhile, nothing is done, and the page says what happened.
"""

from typing import Annotated

import msgspec
from starlette.responses import Response

from cadenza.control import class_changes as control
from cadenza.control.class_changes import (
    ClassRules,
    ClassSituation,
    HistoryEntry,
    RollbackOrder,
    UnknownClass,
)
from cadenza.control.class_diff import VersionDiff, compare_versions
from cadenza.core.classes import ClassVersion
from cadenza.core.errors import ControlError
from cadenza.core.public import to_record
from cadenza.core.records import CLASSES
from cadenza.parts.site.errors import Missing
from cadenza.parts.site.routes import Routes, endpoint, form, get
from cadenza.parts.site.visit import Visit

ONE = "/operator/classes/{class_id}"
NUMBER_MAX = 2**31 - 1
Number = Annotated[int, msgspec.Meta(ge=1, le=NUMBER_MAX)]


class VersionPair(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Two versions to compare. Without them: what was served before and what is served."""

    before: Number | None = None
    after: Number | None = None


class Rollback(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The version to serve; without it, the one before. The reason is in the history.

    `version` is the one that you saw: if another is served by now, nothing is done.
    """

    version: Number
    to: Number | None = None
    reason: str = ""


class OperatorClass(msgspec.Struct, frozen=True, kw_only=True):
    """What serves a class, whether the config pins it, and what to do next."""

    class_id: str
    version: ClassVersion
    previous: int | None
    is_adopted: bool
    pin: str | None
    next_step: str
    versions: list[int]
    history: list[HistoryEntry]


async def class_page(visit: Visit) -> Response:
    found, asked = await _situation(visit), visit.query(VersionPair)
    class_id = found.state.version.class_id
    versions = await control.list_versions(visit.store, class_id)
    diff: VersionDiff | None = None
    try:
        pair = await control.get_pair(visit.store, class_id, asked.before, asked.after)
        diff = compare_versions(*pair) if len(versions) > 1 else None
    except ControlError as problem:
        visit.error = visit.error or problem.message
    return await visit.page_with_panels(
        ONE,
        "operator/class.html",
        found=found,
        versions=versions,
        earlier=[one for one in versions if one.number in found.state.return_targets],
        diff=diff,
        history=await control.list_history(visit.store, class_id),
    )


async def get_class(visit: Visit) -> OperatorClass:
    found = await _situation(visit)
    class_id = found.state.version.class_id
    return to_record(
        OperatorClass,
        found,
        found.state,
        class_id=class_id,
        pin=found.pin or None,
        versions=[one.number for one in await control.list_versions(visit.store, class_id)],
        history=await control.list_history(visit.store, class_id),
    )


async def get_difference(visit: Visit, asked: VersionPair) -> VersionDiff:
    class_id = (await _situation(visit)).state.version.class_id
    return compare_versions(*await control.get_pair(visit.store, class_id, asked.before, asked.after))


async def roll_back(visit: Visit, given: Rollback) -> OperatorClass:
    class_id, rules = class_named(visit)
    order = RollbackOrder(to=given.to, reason=given.reason, seen=given.version)
    await control.roll_back(visit.store, class_id, rules, order, visit.operator, visit.now_ms)
    return await get_class(visit)


async def roll_back_by_form(visit: Visit, version: Number, to: str = "", reason: str = "") -> OperatorClass:
    """An empty field of a form has no value."""
    return await roll_back(visit, visit.convert({"version": version, "to": to or None, "reason": reason}, Rollback))


async def _situation(visit: Visit) -> ClassSituation:
    class_id, rules = class_named(visit)
    try:
        return await control.get_situation(visit.store, class_id, rules)
    except UnknownClass:
        raise Missing from None


def class_named(visit: Visit) -> tuple[str, ClassRules]:
    class_id = visit.path_param("class_id")
    if class_id not in CLASSES:
        raise Missing
    return class_id, visit.service.class_rules(class_id)


ROUTES: Routes = (
    get(ONE, class_page),
    form(f"{ONE}/rollback", roll_back_by_form, ONE, "class-rolled-back", on_error=class_page, needs_proof=True),
    endpoint("GET", ONE, "Show what serves a class: version and history", get_class, "operator.classes:read"),
    endpoint("GET", f"{ONE}/diff", "Compare two versions of a class", get_difference, "operator.classes:read"),
    endpoint(
        "POST",
        f"{ONE}/rollback",
        "Serve an earlier version again",
        roll_back,
        "operator.classes:write",
        needs_proof=True,
    ),
)
