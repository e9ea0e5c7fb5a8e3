"""Watches of classes: rows of `verdicts` whose kind is `watch`, and the lease that lets one process run the next one.

The lease is `class_states.watched_at`, when the last watch began: it is set only if it is still old. A watch that was
killed stays `running` in the store until the next one ends it. `candidate` of a watch is REFERENCE if later watches
are compared with it, else empty. Of each class the newest watches are kept, and those that are references.
"""

from sqlalchemy import and_, bindparam, delete, not_, or_, select, update

from cadenza.store.class_tables import class_states, verdict_scores, verdicts
from cadenza.store.statements import Statement
from cadenza.store.store import Store, Transaction
from cadenza.store.tables import class_versions
from cadenza.store.tables.verdicts import RECORDS, EvaluationRecord, read_record
from cadenza.store.tables.verdicts import add as add_record

REFERENCE = "reference"
KEPT = 200  # watches of a class, besides the references
PRUNED_MAX = 10  # at once, each with all its scores
_OF_CLASS = (verdicts.c.class_id == bindparam("of"), verdicts.c.kind == "watch")
_OF_VERSION = (verdicts.c.state == "finished", verdicts.c.incumbent == bindparam("of_version"))
_FINISHED = RECORDS.where(*_OF_CLASS, *_OF_VERSION)
NEWEST = Statement(_FINISHED.limit(bindparam("count")))
LAST_REFERENCE = Statement(
    _FINISHED.where(verdicts.c.candidate == REFERENCE, verdicts.c.suite_digest == bindparam("of_suite")).limit(1)
)
WATCHED_AT = Statement(select(class_states.c.watched_at).where(class_states.c.class_id == bindparam("of")))
RUNNING = Statement(
    select(verdicts.c.id).where(*_OF_CLASS, verdicts.c.state == "running", verdicts.c.created_at > bindparam("after"))
)
END_ABANDONED = Statement(update(verdicts).where(*_OF_CLASS, verdicts.c.state == "running").values(state="stopped"))
_IS_DUE = or_(class_states.c.watched_at.is_(None), class_states.c.watched_at <= bindparam("due"))
CLAIM = Statement(
    update(class_states)
    .where(class_states.c.class_id == bindparam("of"), _IS_DUE)
    .values(watched_at=bindparam("new_watched_at"))
)

_IS_REFERENCE = and_(verdicts.c.candidate == REFERENCE, verdicts.c.state == "finished")
_OLD = (
    select(verdicts.c.id)
    .where(*_OF_CLASS, not_(_IS_REFERENCE))
    .order_by(verdicts.c.created_at.desc(), verdicts.c.id.desc())
    .limit(PRUNED_MAX)
    .offset(KEPT)
)
DELETE_OLD = (
    Statement(delete(verdict_scores).where(verdict_scores.c.verdict_id.in_(_OLD))),
    Statement(delete(verdicts).where(verdicts.c.id.in_(_OLD))),
)


async def watched_at(store: Store, class_id: str) -> int | None:
    """When the last watch of a class began; None if there was none."""
    row = await store.row(WATCHED_AT, {"of": class_id})
    return row[0] if row else None


def claim(tx: Transaction, record: EvaluationRecord, due_ms: int, abandoned_ms: int) -> bool:
    """Begin a watch, if the last one began before `due_ms` and none runs that began after `abandoned_ms`.

    False also if the version of the record is not the one that is served now.
    """
    of = {"of": record.class_id}
    state = class_versions.get_state(tx, record.class_id)  # locks out every other claim of the class
    if state is None or state.version.number != record.incumbent:
        return False
    if tx.row(RUNNING, {**of, "after": abandoned_ms}):
        return False
    if tx.change(CLAIM, {**of, "due": due_ms, "new_watched_at": record.created_at}) == 0:
        return False
    tx.change(END_ABANDONED, of)
    add_record(tx, record)
    for statement in DELETE_OLD:
        tx.change(statement, of)
    return True


async def list_finished(store: Store, class_id: str, version: int, count: int) -> list[EvaluationRecord]:
    """The newest watches of this version that came to an end, newest first."""
    return [
        read_record(row) for row in await store.rows(NEWEST, {"of": class_id, "of_version": version, "count": count})
    ]


async def last_reference(store: Store, class_id: str, version: int, suite_digest: bytes) -> EvaluationRecord | None:
    """What a watch of this version with this suite is compared with."""
    row = await store.row(LAST_REFERENCE, {"of": class_id, "of_version": version, "of_suite": suite_digest})
    return read_record(row) if row else None
