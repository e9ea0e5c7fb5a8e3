"""Which version of each class is served: resolved by every process at its start and at each reload.

The config decides about a class until an operator adopts it, or first promotes a candidate for a class that the config
does not pin. From then on the store decides. What the config says is recorded as a version too, under the number that
it had before, or else the next one. Everything happens in one transaction, and processes that start together agree: if
two record the same version at once, the store refuses one of them, which tries again and finds it.

Processes with different configs each serve their own. The state then says what the last of them to start, or to load
another config, serves: a process that goes on serving what its config says leaves the state alone.
"""

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

import msgspec

from cadenza.core.classes import ClassState, ClassVersion, ConfiguredClass
from cadenza.core.errors import ControlError
from cadenza.core.records import CLASSES, Operator, RetentionBy
from cadenza.fleet.changes import make_change
from cadenza.store.store import Store, StoreBusy, StoreRefused, Transaction
from cadenza.store.tables import audit_events, class_versions, epochs
from cadenza.store.tables.audit_events import AuditEvent
from cadenza.upstreams.dialects import ENFORCE

CONFIG = Operator("config")  # the actor of a version that the config names
TRIES = 5  # processes that start together wait for each other


class ServingProcess(msgspec.Struct, frozen=True):
    """A process that serves: its states until now, and what it calls once its config has replaced what was served."""

    states: Mapping[str, ClassState] = {}
    replaced: Callable[[ClassState, ClassState], None] = lambda _before, _after: None


STARTING = ServingProcess()


async def resolve(
    store: Store,
    configured: Mapping[str, ConfiguredClass],
    providers: Mapping[str, RetentionBy],
    now_ms: int,
    *,
    named: Collection[str] = (),
    process: ServingProcess | None = STARTING,
) -> dict[str, ClassState]:
    """The state of each class that is served, once it is recorded.

    ControlError, and nothing is recorded, if a version names a provider that is not among `providers`, or demands more
    of it than it enforces, or if one of the classes that the config has `named` has no routes. A command that does not
    serve (`process` is None) records versions, and leaves the state to the processes that do: its config may be another
    one than theirs.
    """
    replaced = dict[str, tuple[ClassState, ClassState]]()

    def work(tx: Transaction) -> dict[str, ClassState]:
        replaced.clear()
        states = {state.version.class_id: state for state in class_versions.list_states(tx)}
        served = dict[str, ClassState]()
        for class_id in CLASSES:
            given, state = configured.get(class_id), states.get(class_id)
            if state and is_decided_by_store(state, given):
                served[class_id] = state
            elif given:
                own = process.states.get(class_id) if process else None
                if state and own and _is_current(own, given) and not is_decided_by_store(own, given):
                    served[class_id] = state if _is_current(state, given) else own
                    continue
                before, served[class_id] = _record(tx, given, state, now_ms, serves=process is not None)
                if before:
                    replaced[class_id] = before, served[class_id]
        for state in served.values():
            require_providers(state.version, providers)
        for class_id in named:
            require_routes(class_id, served)
        return served

    served = await _try_again(store, work)
    if process:
        for before, after in replaced.values():
            process.replaced(before, after)
    return served


async def _try_again(store: Store, work: Callable[[Transaction], dict[str, ClassState]]) -> dict[str, ClassState]:
    for _ in range(TRIES - 1):
        with suppress(StoreBusy, StoreRefused):
            return await store.transact(work)
    return await store.transact(work)


async def read_served(store: Store, configured: Mapping[str, ConfiguredClass]) -> dict[str, ClassState]:
    """The same without writing. What the config says has the number 0 until a process has loaded it."""
    served = unrecorded(configured)
    for state in await class_versions.read_states(store):
        given = configured.get(state.version.class_id)
        if is_decided_by_store(state, given) or (given and _is_current(state, given)):
            served[state.version.class_id] = state
    return {class_id: served[class_id] for class_id in CLASSES if class_id in served}


def unrecorded(configured: Mapping[str, ConfiguredClass]) -> dict[str, ClassState]:
    """What the config says, as states that the store does not have."""
    return {class_id: ClassState(version=one.version) for class_id, one in configured.items()}


def is_decided_by_store(state: ClassState, given: ConfiguredClass | None) -> bool:
    """Whether the store decides what is served, and not the config. A class that only the store has must be adopted."""
    if state.is_adopted or given is None:
        return state.is_adopted
    return state.was_promoted and not given.is_pinned


def _record(
    tx: Transaction, given: ConfiguredClass, state: ClassState | None, now_ms: int, *, serves: bool
) -> tuple[ClassState | None, ClassState]:
    """Record what the config says, unless the state says it already. The state that it replaces, and what is served."""
    if state and _is_current(state, given):
        return None, state
    new = msgspec.structs.replace(given.version, created_at=now_ms, actor=CONFIG.name)
    state = class_versions.get_state(tx, new.class_id)  # locked, and read again
    if state is None:
        first = class_versions.find(tx, new) or class_versions.add(tx, new)
        class_versions.add_state(tx, first, now_ms)
        return None, ClassState(version=first, changed_at=now_ms)
    if is_decided_by_store(state, given) or _is_current(state, given):
        return None, state
    found = class_versions.find(tx, new)
    version = found or class_versions.add(tx, new)
    if not serves:
        return None, ClassState(version=version)
    is_changed = class_versions.change_state(tx, state.serving(version), now_ms)
    assert is_changed, "the state is locked"
    if found:  # a new version is a record of its own
        detail = f"version {version.number} again, instead of {state.version.number}"
        audit_events.add(tx, AuditEvent(now_ms, CONFIG, "class.config", subject=new.class_id, detail=detail))
    written = class_versions.get_state(tx, new.class_id)
    assert written
    return state, written


def _is_current(state: ClassState, given: ConfiguredClass) -> bool:
    """Whether the state says what the config says."""
    served, wanted = state.version, given.version
    return (served.routes, served.character) == (wanted.routes, wanted.character)


def require_routes(class_id: str, served: Collection[str]) -> None:
    """ControlError if a class that has settings in the config is not served."""
    if class_id not in served:
        raise ControlError(
            f"The class '{class_id}' has no routes: the config has settings for it and names no routes, and the store "
            f"has not adopted it. Add [[classes.{class_id}.routes]] to the config, or remove what it says of the class."
        )


def require_providers(version: ClassVersion, providers: Mapping[str, RetentionBy], *, is_served: bool = True) -> None:
    """ControlError if a provider of a version is missing or enforces too little.

    `providers` says of each what makes sure of zero retention.
    """
    which = f"Version {version.number} of the class '{version.class_id}'"
    if missing := {route.provider for route in version.routes}.difference(providers):
        name, otherwise = min(missing), f", or run 'cadenza class rollback {version.class_id}'" if is_served else ""
        why = f"{which} needs the provider '{name}', which the config does not have"
        raise ControlError(f"{why}. Define [providers.{name}]{otherwise}.")
    demanding = (route.provider for route in version.routes if route.retention_by == "api")
    if name := next((name for name in demanding if providers[name] != "api"), ""):
        raise ControlError(
            f"{which} demands zero retention by API of the provider '{name}', whose API does not enforce it. {ENFORCE}"
        )


async def announce_reload(store: Store) -> None:
    """Have every process on this store read its own config file again before its next request."""
    await make_change(store, lambda tx: epochs.begin_next(tx, epochs.CLASSES))
