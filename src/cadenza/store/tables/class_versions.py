"""The versions of classes, and the state of each class. Versions are append-only.

A state is changed only if its revision is still the one that was read, so that of two operators one wins.
"""

import msgspec
from sqlalchemy import bindparam, insert, literal_column, null, select, update

from cadenza.core.classes import ClassState, ClassVersion
from cadenza.core.records import Route
from cadenza.store.class_tables import class_states, class_versions
from cadenza.store.rows import Rows
from cadenza.store.statements import Statement
from cadenza.store.store import Row, Store, Transaction

VERSION_ROWS = Rows(ClassVersion, class_versions, {"routes": msgspec.json.Decoder(tuple[Route, ...]).decode})
_PROMOTED = select(class_versions.c.number).where(
    class_versions.c.class_id == class_states.c.class_id, class_versions.c.origin == literal_column("'promotion'")
)
STATE_ROWS = Rows(  # with the number of the version
    ClassState,
    class_states,
    {"earlier": msgspec.json.Decoder(tuple[int, ...]).decode},
    was_promoted=_PROMOTED.exists(),
)
_VERSIONS = (
    select(*VERSION_ROWS.columns)
    .where(class_versions.c.class_id == bindparam("of"))
    .order_by(class_versions.c.number.desc())
)
ADD_VERSION = Statement(insert(class_versions), *ClassVersion.__struct_fields__, "digest")
NEWEST_FIRST = Statement(_VERSIONS)
BY_NUMBER = Statement(_VERSIONS.where(class_versions.c.number == bindparam("number")))
BY_DIGEST = Statement(_VERSIONS.where(class_versions.c.digest == bindparam("digest")))
_STATES = select(class_states.c.class_id, *STATE_ROWS.columns)
_STATE_OF_CLASS = _STATES.where(class_states.c.class_id == bindparam("of"))
READ_STATE = Statement(_STATE_OF_CLASS)
STATE = Statement(_STATE_OF_CLASS.with_for_update())
STATES = Statement(_STATES.order_by(class_states.c.class_id))
ADD_STATE = Statement(insert(class_states), "class_id", "version", "is_adopted", "changed_at")
_CHANGED = ("version", "earlier", "is_adopted", "is_rolled_back", "changed_at")
# A process of release 0.1.0 may have begun a canary: any change ends it.
_NO_CANARY = {"candidate": null(), "share": literal_column("0"), "canary": null()}
CHANGE_STATE = Statement(
    update(class_states)
    .where(class_states.c.class_id == bindparam("of"), class_states.c.revision == bindparam("before"))
    .values(
        {name: bindparam(f"new_{name}") for name in _CHANGED} | {"revision": class_states.c.revision + 1} | _NO_CANARY
    )
)


def add(tx: Transaction, version: ClassVersion) -> ClassVersion:
    """Record a version under the next number of its class, and return it with its number.

    The caller has locked the state of the class, or is the first to record a version of it.
    """
    newest = tx.row(NEWEST_FIRST, {"of": version.class_id})
    numbered = msgspec.structs.replace(version, number=(VERSION_ROWS.read(newest).number if newest else 0) + 1)
    routes = msgspec.json.encode(numbered.routes).decode()
    tx.change(ADD_VERSION, {**msgspec.structs.asdict(numbered), "routes": routes, "digest": numbered.digest})
    return numbered


def find(tx: Transaction, version: ClassVersion) -> ClassVersion | None:
    """The newest recorded version with the same routes and the same character."""
    row = tx.row(BY_DIGEST, {"of": version.class_id, "digest": version.digest})
    return VERSION_ROWS.read(row) if row else None


def get(tx: Transaction, class_id: str, number: int) -> ClassVersion | None:
    row = tx.row(BY_NUMBER, {"of": class_id, "number": number})
    return VERSION_ROWS.read(row) if row else None


async def read(store: Store, class_id: str, number: int) -> ClassVersion | None:
    row = await store.row(BY_NUMBER, {"of": class_id, "number": number})
    return VERSION_ROWS.read(row) if row else None


async def list_newest(store: Store, class_id: str) -> list[ClassVersion]:
    return [VERSION_ROWS.read(row) for row in await store.rows(NEWEST_FIRST, {"of": class_id})]


def get_state(tx: Transaction, class_id: str) -> ClassState | None:
    """The state of a class, locked until the transaction ends."""
    row = tx.row(STATE, {"of": class_id})
    return _get_state(tx, row) if row else None


def list_states(tx: Transaction) -> list[ClassState]:
    return [_get_state(tx, row) for row in tx.rows(STATES, {})]


async def read_state(store: Store, class_id: str) -> ClassState | None:
    """The state of a class. It may change at any time: `change_state` refuses what was decided on an older one."""
    row = await store.row(READ_STATE, {"of": class_id})
    return await _read_state(store, row) if row else None


async def read_states(store: Store) -> list[ClassState]:
    """The states of all classes, as `read_state` reads them."""
    return [await _read_state(store, row) for row in await store.rows(STATES, {})]


def add_state(tx: Transaction, version: ClassVersion, now_ms: int) -> None:
    """The first state of a class."""
    values = {"class_id": version.class_id, "version": version.number, "is_adopted": False, "changed_at": now_ms}
    tx.change(ADD_STATE, values)


def change_state(tx: Transaction, state: ClassState, now_ms: int) -> bool:
    """Write a state whose `revision` is that of the row that was read. False if another change came first."""
    values = {
        "of": state.version.class_id,
        "before": state.revision,
        "new_version": state.version.number,
        "new_earlier": msgspec.json.encode(state.earlier).decode(),
        "new_is_adopted": state.is_adopted,
        "new_is_rolled_back": state.is_rolled_back,
        "new_changed_at": now_ms,
    }
    return tx.change(CHANGE_STATE, values) == 1


def _get_state(tx: Transaction, row: Row) -> ClassState:
    return _make_state(row, get(tx, row[0], row[1]))


async def _read_state(store: Store, row: Row) -> ClassState:
    return _make_state(row, await read(store, row[0], row[1]))


def _make_state(row: Row, version: ClassVersion | None) -> ClassState:
    assert version, "a state names a version that exists"
    return msgspec.structs.replace(STATE_ROWS.read(row[1:]), version=version)
