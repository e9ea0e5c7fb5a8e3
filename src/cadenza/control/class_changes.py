"""Versions of classes for operators: what is served, its history, and adoption, promotion and rollback.

A change is decided on the state that was read, and made only if that is still the state: of two operators who act at
once, one wins, and the other is told what happened. A change, its audit event and the epoch that makes every process
serve it are one transaction. What the config pins stays pinned until the class is adopted, forced or not.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path

import msgspec

from cadenza import parts
from cadenza.control.class_versions import require_providers
from cadenza.core.classes import ClassState, ClassVersion, GateLimits
from cadenza.core.errors import ControlError
from cadenza.core.formats import rfc3339
from cadenza.core.public import Public
from cadenza.core.records import CLASSES, Operator, RetentionBy, Route
from cadenza.fleet.changes import make_change
from cadenza.store.store import Store, Transaction
from cadenza.store.tables import audit_events, class_versions, epochs
from cadenza.store.tables.audit_events import AuditEvent

REASON_CHARS_MAX = 500
HISTORY_SHOWN = 50


class UnknownClass(ControlError):
    """There is no such class, or it has no version yet."""


class ClassRules(msgspec.Struct, frozen=True, kw_only=True):
    """What the config says about a class."""

    pin: str = ""  # where it names the routes, like "cadenza.toml, line 12"; empty: it does not
    gate: GateLimits = GateLimits()
    suite: Path | None = None  # of the gate; None: the starter suite
    providers: Mapping[str, RetentionBy] = {}  # all that a route can name, and what makes sure of zero retention


class Judgement(msgspec.Struct, frozen=True):
    """What evaluations say of a class: what to do next, and the newest verdict on a candidate, if there is one."""

    next_step: str
    verdict: str = ""  # in a sentence
    record: Mapping[str, object] | None = None  # the same for programs


# The verdict that lets a version replace what is served. ControlError if there is none.
Gate = Callable[[Store, ClassState, ClassVersion, ClassRules, int], Awaitable[str]]
Judge = Callable[[Store, ClassState, ClassRules], Awaitable[Judgement]]


class ClassSituation(msgspec.Struct, frozen=True, kw_only=True):
    """What is served, whether the config pins it, and what evaluations say of it."""

    state: ClassState
    pin: str  # empty once the class is adopted
    judgement: Judgement

    @property
    def next_step(self) -> str:
        class_id = self.state.version.class_id
        if not self.pin:
            return self.judgement.next_step
        return (
            f"The config pins its routes ({self.pin}). Change them there, or run 'cadenza class adopt {class_id}' to "
            "promote candidates after evaluation."
        )

    @property
    def is_built_in(self) -> bool:
        """Whether the built-in default decides what is served, until a candidate is promoted."""
        return not (self.pin or self.state.is_adopted or self.state.was_promoted)


class HistoryEntry(Public, msgspec.Struct, frozen=True):
    """A change of a class, or an observation about it."""

    at: int
    actor: str
    event: str
    detail: str


class PromotionOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What to serve instead of the main routes."""

    candidate: Route
    forced: str | None = None  # the reason why the gate is skipped; None: it is not


class RollbackOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Without `to`, back to the version that was served before. `seen` is the version that a page showed as served."""

    to: int | None = None
    reason: str = ""
    seen: int | None = None


async def get_situation(store: Store, class_id: str, rules: ClassRules) -> ClassSituation:
    state = await _read_state(store, class_id)
    pin = "" if state.is_adopted else rules.pin
    return ClassSituation(state=state, pin=pin, judgement=await _judge(store, state, rules))


async def list_history(store: Store, class_id: str, count: int = HISTORY_SHOWN) -> list[HistoryEntry]:
    """The newest changes of a class and observations about it, newest first."""
    await _read_state(store, class_id)
    events = await audit_events.list_of_subject(store, class_id, count)
    made = await class_versions.list_newest(store, class_id)
    recorded = [
        HistoryEntry(one.created_at, one.actor, "class.config", f"version {one.number}: {name_routes(one)}")
        for one in made
        if one.origin == "config"  # a promotion has an event
    ]
    found = [HistoryEntry(one.at, one.actor, one.event, one.detail) for one in events]
    return sorted(found + recorded, key=lambda entry: -entry.at)[:count]


async def list_versions(store: Store, class_id: str) -> list[ClassVersion]:
    """All versions of a class, newest first."""
    await _read_state(store, class_id)
    return await class_versions.list_newest(store, class_id)


async def get_pair(
    store: Store, class_id: str, before: int | None = None, after: int | None = None
) -> tuple[ClassVersion, ClassVersion]:
    """Two versions to compare; what is not named is what is served, or what was served before."""
    state = await _read_state(store, class_id)
    served = state.version.number
    after = served if after is None else after
    if before is None:
        before = served if after != served else state.previous or served
    return await _read_version(store, class_id, before), await _read_version(store, class_id, after)


async def adopt(store: Store, class_id: str, rules: ClassRules, by: Operator, now_ms: int) -> ClassState:
    """From now on the store decides what the class serves, and the routes in the config do not."""
    state = await _read_state(store, class_id)
    if state.is_adopted:
        raise ControlError(f"'{class_id}' is adopted already: promote a candidate, or roll back.")
    if not rules.pin:
        raise ControlError(f"The config names no routes for '{class_id}', so the store decides already.")
    detail = f"version {state.version.number} stays; {rules.pin} no longer takes effect"
    event = AuditEvent(now_ms, by, "class.adopt", subject=class_id, detail=detail)
    new = msgspec.structs.replace(state, is_adopted=True)
    return await _change(store, state, new, event)


async def hand_back(store: Store, class_id: str, rules: ClassRules, by: Operator, now_ms: int) -> ClassState:
    """Undo an adoption: the routes of the config are served again."""
    state = await _read_state(store, class_id)
    if not state.is_adopted:
        raise ControlError(f"'{class_id}' is not adopted.")
    if not rules.pin:
        raise ControlError(f"The config names no routes for '{class_id}': write them there, and run this again.")
    detail = f"the routes of {rules.pin} count again, instead of version {state.version.number}"
    event = AuditEvent(now_ms, by, "class.adopt", subject=class_id, detail=detail)
    return await _change(store, state, msgspec.structs.replace(state, is_adopted=False), event)


async def promote(
    store: Store, class_id: str, rules: ClassRules, order: PromotionOrder, by: Operator, now_ms: int
) -> ClassState:
    """Serve the candidate instead of the main routes."""
    state = await _read_state(store, class_id)
    _refuse_pinned(state, rules)
    made = state.version.with_candidate(order.candidate)
    if made.digest == state.version.digest:
        raise ControlError(f"{order.candidate.name} serves '{class_id}' already: there is nothing to promote.")
    _refuse_weaker_retention(state, order.candidate)
    verdict_id: str | None = None
    if order.forced is None:
        verdict_id = await _find_gate()(store, state, made, rules, now_ms)
        why = f"verdict {verdict_id}"
    else:
        why = f"FORCED past the gate: {_check_reason(order.forced, is_required=True)}"
    before = state.version.number

    def change(tx: Transaction) -> ClassState:
        current = _lock(tx, class_id, before)
        stamped = msgspec.structs.replace(made, created_at=now_ms, actor=by.name, verdict_id=verdict_id)
        version = _find_version(tx, current, stamped) or class_versions.add(tx, stamped)
        detail = f"version {version.number} instead of {before}: {order.candidate.name}; {why}"
        event = AuditEvent(now_ms, by, "class.promote", subject=class_id, detail=detail)
        return _write(tx, current.serving(version), event)

    return await make_change(store, change)


async def roll_back(
    store: Store, class_id: str, rules: ClassRules, order: RollbackOrder, by: Operator, now_ms: int
) -> ClassState:
    """Serve an earlier version again."""
    state = await _read_state(store, class_id)
    _refuse_pinned(state, rules)
    reason = f": {given}" if (given := _check_reason(order.reason)) else ""
    served, seen = state.version.number, order.seen
    if seen is not None and seen != served:
        await store.transact(partial(_lock, class_id=class_id, seen=seen))  # says who came first
    version = await _read_version(store, class_id, _rollback_target(state, order.to))
    _refuse_never_served(state, version)
    require_providers(version, rules.providers, is_served=False)
    detail = f"version {version.number} instead of {served}{reason}"
    event = AuditEvent(now_ms, by, "class.rollback", subject=class_id, detail=detail)
    return await _change(store, state, state.serving(version, is_rollback=True), event)


def name_routes(version: ClassVersion) -> str:
    """The main routes, and how many fallbacks there are."""
    main = version.main_routes
    others = len(version.routes) - len(main)
    names = ", ".join(route.name for route in main)
    return f"{names} and {others} fallback{'s' if others > 1 else ''}" if others else names


async def _change(store: Store, seen: ClassState, new: ClassState, event: AuditEvent) -> ClassState:
    def change(tx: Transaction) -> ClassState:
        current = _lock(tx, event.subject, seen.version.number)
        return _write(tx, msgspec.structs.replace(new, revision=current.revision), event)

    return await make_change(store, change)


def _lock(tx: Transaction, class_id: str, seen: int) -> ClassState:
    """The state, locked. ControlError if it no longer has the version that the operator saw."""
    current = class_versions.get_state(tx, class_id)
    assert current, "a state is never removed"
    if current.version.number != seen:
        event = audit_events.newest_of_subject(tx, class_id)
        who = f"{event.actor}, {rfc3339(event.at)}, {event.event}: {event.detail}. " if event else ""
        raise ControlError(
            f"'{class_id}' has changed meanwhile, so nothing was done. {who}Look at it with 'cadenza class show "
            f"{class_id}', and repeat what you did if you still want it."
        )
    return current


def _write(tx: Transaction, new: ClassState, event: AuditEvent) -> ClassState:
    is_written = class_versions.change_state(tx, new, event.at)
    assert is_written, "the state was locked"
    audit_events.add(tx, event)
    epochs.begin_next(tx, epochs.CLASSES)
    written = class_versions.get_state(tx, event.subject)
    assert written
    return written


async def _read_state(store: Store, class_id: str) -> ClassState:
    if class_id not in CLASSES:
        raise UnknownClass(f"There is no class '{class_id}': the classes are {', '.join(CLASSES)}.")
    state = await class_versions.read_state(store, class_id)
    if state is None:
        raise UnknownClass(
            f"'{class_id}' has no version yet: the service records version 1 when it first starts with routes for it."
        )
    return state


async def _read_version(store: Store, class_id: str, number: int) -> ClassVersion:
    version = await class_versions.read(store, class_id, number)
    if version is None:
        raise ControlError(
            f"'{class_id}' has no version {number}: 'cadenza class history {class_id}' shows those that it has."
        )
    return version


def _find_version(tx: Transaction, state: ClassState, made: ClassVersion) -> ClassVersion | None:
    """The version that these routes and this character have already, so that a candidate has one number.

    A version of the config is taken only after a promotion: the first one is what makes the store decide.
    """
    found = class_versions.find(tx, made)
    return found if found and (state.was_promoted or found.origin == "promotion") else None


def _rollback_target(state: ClassState, to: int | None) -> int:
    class_id, served = state.version.class_id, state.version.number
    if to == served:
        raise ControlError(f"Version {served} of '{class_id}' is served already.")
    if to is not None:
        return to
    advice = f"'cadenza class history {class_id}' shows the versions: name one with --to NUMBER."
    if state.previous is None:
        raise ControlError(f"Version {served} of '{class_id}' is the first that was served. {advice}")
    if state.is_rolled_back:
        raise ControlError(f"'{class_id}' was rolled back to version {served} already. {advice}")
    return state.previous


def _refuse_never_served(state: ClassState, version: ClassVersion) -> None:
    """A version that was never served, and a newer one, need a promotion, and so its gate."""
    if version.number in state.return_targets:
        return
    class_id, place = version.class_id, version.main_routes[0].name
    why = "is newer than" if version.number > state.version.number else "was never served, unlike"
    raise ControlError(
        f"Version {version.number} of '{class_id}' {why} version {state.version.number}, which is served: "
        f"promote it, with 'cadenza class promote {class_id} --candidate {place}'."
    )


def _refuse_pinned(state: ClassState, rules: ClassRules) -> None:
    if rules.pin and not state.is_adopted:
        class_id = state.version.class_id
        raise ControlError(
            f"The config pins '{class_id}' ({rules.pin}): change its routes there, or hand the class over to the store "
            f"with 'cadenza class adopt {class_id}'."
        )


def _refuse_weaker_retention(state: ClassState, candidate: Route) -> None:
    if candidate.retention_by != "api" and any(route.retention_by == "api" for route in state.version.main_routes):
        class_id = state.version.class_id
        raise ControlError(
            f"'{class_id}' is served with zero retention by API, and {candidate.name} does not demand it: write "
            f'retention = "zero" and by = "api" in [[classes.{class_id}.candidates]] for it.'
        )


def _check_reason(reason: str, *, is_required: bool = False) -> str:
    text = reason.strip()
    if len(text) > REASON_CHARS_MAX or not text.isprintable():
        raise ControlError(f"A reason is one line of at most {REASON_CHARS_MAX} characters.")
    if is_required and not text:
        raise ControlError("A promotion that skips the gate needs a reason: add --reason TEXT.")
    return text


def _find_gate() -> Gate:
    part = _evaluation()
    if not part.is_installed:
        raise ControlError(
            "The gate, which asks for a verdict on the candidate, is a part of its own: "
            f"it {part.missing}. To promote without a verdict: --force --reason TEXT."
        )
    gate: Gate = part.load("open").gate
    return gate


async def _judge(store: Store, state: ClassState, rules: ClassRules) -> Judgement:
    part = _evaluation()
    if part.is_installed:
        judge: Judge = part.load("open").judge
        return await judge(store, state, rules)
    promotion = f"cadenza class promote {state.version.class_id} --candidate PROVIDER/MODEL --force --reason TEXT"
    return Judgement(f"To serve another model, run '{promotion}'.")


def _evaluation() -> parts.Part:
    part = parts.find("gate")
    assert part, "it is listed"
    return part
