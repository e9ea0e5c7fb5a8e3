"""A model of Postgres (READ COMMITTED) and of SQLite: in memory, synchronous and deterministic.

It runs the project's own statements with their transactions, row locks, unique keys, foreign keys, constraints and
triggers. A statement reads all tables when it begins, and then locks and changes rows one after the other; on the way
it may wait for other sessions. A row that changed meanwhile is read again in its newest version and its conditions are
checked again, while the rows that are joined to it stay as they were. The store of the simulation serialises the
writers of SQLite itself: nothing waits there.

What differs: the session that closes the circle is the victim of a deadlock; rows without an order come as they were
inserted, and text is ordered by code points; a sum is an int, and a flag of SQLite a bool; no number is too large.
"""

import itertools
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from cadenza.store.migrate import REVISIONS
from cadenza.store.statements import Statement, Values
from cadenza.store.store import REVISION_TABLE
from tests.simulation.sql import (
    KEY_SHARE,
    NO_KEY_UPDATE,
    UPDATE,
    ChangePlan,
    CombinedPlan,
    DeletePlan,
    InsertPlan,
    LockingPlan,
    SelectPlan,
    StatementPlan,
    UpdatePlan,
    compile_statement,
    compile_text,
)
from tests.simulation.tables import ForeignKeyLayout, Kind, RowState, TableIndex, TableLayout, Tuple, layouts

CONFLICTS = {1: (4,), 2: (3, 4), 3: (2, 3, 4), 4: (1, 2, 3, 4)}  # by mode: the modes that exclude it
SEQUENCE_AHEAD = 32  # Postgres logs a sequence this far ahead: after a failover, ids may be left out
NOTHING: tuple[()] = ()
FIRST_ROWS: dict[str, list[Tuple]] = {
    "epochs": [("classes", 0), ("changes", 0)],
    REVISION_TABLE: [(REVISIONS[-1], REVISIONS[0])],
}

Waits = Generator["ModelSession", None, None]
Running = Generator["ModelSession", None, "StatementResult"]
Found = Iterable[Any]
RowChanges = list[tuple[RowState, Tuple | None]]  # rows, and their versions before


class Refused(Exception):
    """A constraint or a trigger refused a change. The transaction is rolled back."""


class Deadlock(Exception):
    """The session would wait for one that waits for it. The transaction is rolled back."""


class StatementResult(msgspec.Struct, frozen=True):
    """The rows that a statement returns, and how many it read or changed."""

    rows: list[Tuple]
    count: int


class DatabaseState(NamedTuple):
    """What was committed at some time: how many commits there were since the first `save`, and the last ids."""

    commits: int
    sequences: tuple[int, ...]


class ModelDatabase:
    """The committed rows, the rows of open transactions, and the indexes of both."""

    def __init__(self, kind: Kind) -> None:
        self.kind: Kind = kind
        self.layouts = layouts(kind)
        self.rows: list[dict[RowState, None]] = [{} for _ in self.layouts.tables]
        self.buckets: list[dict[Any, Any]] = [{} for _ in range(self.layouts.index_count)]
        self.sequences = [0] * len(self.rows)
        self.open: dict[ModelSession, None] = {}
        self._ages = itertools.count(1)
        self.log: list[RowChanges] | None = None  # the versions before each commit
        self.on_commit: list[Callable[[RowChanges], None]] = []
        for name, rows in FIRST_ROWS.items():
            for row in rows:
                self._put(RowState(self.layouts.tables[name], row, None), row)

    def begin(self) -> "ModelSession":
        """Open a transaction."""
        return ModelSession(self)

    def next_age(self) -> int:
        return next(self._ages)

    def save(self) -> DatabaseState:
        """What is committed now, for `restore`."""
        if self.log is None:
            self.log = []
        return DatabaseState(len(self.log), tuple(self.sequences))

    def restore(self, state: DatabaseState) -> None:
        """Undo everything that was committed since `save`. Open transactions are rolled back."""
        for session in [*self.open]:
            session.roll_back()
        assert self.log is not None
        while len(self.log) > state.commits:
            for row, before in reversed(self.log.pop()):
                self.remove(row, row.committed)
                if before is not None:
                    self._put(row, before)
        ahead = SEQUENCE_AHEAD if self.kind == "postgres" else 0
        self.sequences = [last + ahead if last else 0 for last in state.sequences]

    def table(self, name: str) -> Iterator[dict[str, Any]]:
        """The committed rows of a table."""
        columns = self.layouts.tables[name].columns
        for row in self.versions(name):
            yield dict(zip(columns, row, strict=True))

    def versions(self, name: str) -> Iterator[Tuple]:
        """The same, as tuples in the order of the columns."""
        for row in self.rows[self.layouts.tables[name].number]:
            if row.committed is not None:
                yield row.committed

    def finder(self, name: str, column: str) -> Callable[[Any], list[Tuple]]:
        """A function that finds the committed rows of a table by the value of a column that has an index."""
        index = next(one for one in self.layouts.tables[name].indexes if one.columns == (column,))
        buckets, [place] = self.buckets[index.number], index.places

        def find(value: Any) -> list[Tuple]:
            found = [row.committed for row in buckets.get(value, NOTHING)]
            return [row for row in found if row is not None and row[place] == value]

        return find

    def _put(self, row: RowState, committed: Tuple) -> None:
        row.committed, row.pending = committed, None
        self.rows[row.table.number][row] = None
        for index in row.table.indexes:
            self.add_key(index, index.key(committed), row)

    def add_key(self, index: TableIndex, key: Any, row: RowState) -> None:
        if key is None:
            return
        buckets = self.buckets[index.number]
        bucket = buckets.get(key)
        if bucket is None:
            buckets[key] = [row] if index.is_unique else {row: None}
        elif not index.is_unique:
            bucket[row] = None
        elif row not in bucket:
            bucket.append(row)

    def drop_key(self, index: TableIndex, key: Any, row: RowState) -> None:
        buckets = self.buckets[index.number]
        bucket = buckets.get(key)
        if bucket is None or row not in bucket:
            return
        if len(bucket) == 1:
            del buckets[key]
        elif index.is_unique:
            bucket.remove(row)
        else:
            del bucket[row]

    def remove(self, row: RowState, version: Tuple | None) -> None:
        self.rows[row.table.number].pop(row, None)
        if version is not None:
            for index in row.table.indexes:
                self.drop_key(index, index.key(version), row)


class ModelSession:
    """One transaction."""

    __slots__ = (
        "_changed",
        "_checks",
        "_database",
        "_has_locks",
        "_has_news",
        "_locked",
        "_rekeyed",
        "_sequences",
        "age",
        "buckets",
        "command",
        "is_ended",
        "rows",
        "waits_for",
    )

    def __init__(self, database: ModelDatabase) -> None:
        self.is_ended = False
        self.waits_for: ModelSession | None = None
        self.command = 0
        self.age = 0  # the number of its first lock or change; Postgres waits for the oldest first
        self.rows, self.buckets = database.rows, database.buckets
        self._database = database
        self._has_locks = database.kind == "postgres"
        self._has_news = False
        self._changed: list[RowState] = []
        self._locked: list[RowState] = []
        self._rekeyed: list[tuple[TableIndex, RowState, Any, Any]] = []  # keys that a row had or has in a transaction
        self._checks: list[tuple[ForeignKeyLayout, Any] | tuple[TableLayout, Tuple]] = []  # at the end of the statement
        self._sequences = () if self._has_locks else tuple(database.sequences)  # SQLite uses ids again
        database.open[self] = None

    def run(self, statement: Statement, values: Values) -> Running:
        """Run a statement. Yields each session that it must wait for; go on when that one has ended.

        Of several that wait for one session, the first is to go on first.
        """
        compiled = compile_statement(self._database.kind, statement)
        return self._run(compiled.plan, compiled.pick(values))

    def run_text(self, text: str, values: Tuple) -> Running:
        """The same for the text of a statement, and its values in order."""
        return self._run(compile_text(self._database.kind, text), values)

    @property
    def has_changes(self) -> bool:
        return bool(self._changed)

    def _run(self, plan: StatementPlan, p: Tuple) -> Running:
        assert not self.is_ended
        if type(plan) is SelectPlan:
            rows = plan.rows(self, p, None)
            return StatementResult(rows, len(rows))
        self.command += 1
        try:
            if type(plan) is CombinedPlan:
                return (yield from self._combine(plan, p))
            done = yield from self._finish(plan, p, None, self._begin(plan, p))  # type: ignore[arg-type]
            if self._checks:
                yield from self._check_references()
        except (Refused, Deadlock):
            self.roll_back()
            raise
        return done

    def announce(self) -> None:
        self._has_news = True

    def commit(self) -> bool:
        """Make the changes visible. Return whether something was announced."""
        assert not self.is_ended
        database = self._database
        changes: RowChanges = [(row, row.committed) for row in self._changed]
        if database.log is not None and changes:
            database.log.append(changes)
        for row, before in changes:
            row.committed, row.pending, row.writer = row.pending, None, None
            if row.committed is None:
                database.remove(row, before)
        self._end()
        for see in database.on_commit:
            see(changes)
        return self._has_news

    def roll_back(self) -> None:
        if self.is_ended:
            return
        for row in self._changed:
            pending, row.pending, row.writer = row.pending, None, None
            if row.committed is None:
                self._database.remove(row, pending)
        if not self._has_locks:
            self._database.sequences[:] = self._sequences
        self._end()

    def next_id(self, table: int) -> int:
        sequences = self._database.sequences
        sequences[table] += 1
        return sequences[table]

    def _end(self) -> None:
        for index, row, *keys in self._rekeyed:
            kept = index.key(row.committed)
            for key in keys:
                if key is not None and key != kept:
                    self._database.drop_key(index, key, row)
        for row in self._locked:
            del row.locks[self]
        self.is_ended = True
        del self._database.open[self]

    def _combine(self, plan: CombinedPlan, p: Tuple) -> Running:
        found = {name: self._begin(part, p) for name, part in plan.parts}
        results: dict[str, list[Tuple]] = {}
        for name, part in plan.parts:
            done = yield from self._finish(part, p, results, found[name])
            results[name] = done.rows
        rows = plan.main.rows(self, p, results)
        yield from self._check_references()
        return StatementResult(rows, len(rows))

    def _begin(self, plan: ChangePlan, p: Tuple) -> Found:
        """Read what the statement needs of the tables."""
        if type(plan) is InsertPlan:
            return plan.rows(self, p, None) if plan.reads_tables else []
        return plan.scan(self, p, None)  # type: ignore[no-any-return, union-attr]

    def _finish(self, plan: ChangePlan, p: Tuple, x: Any, found: Found) -> Running:
        match plan:
            case UpdatePlan():
                return self._update(plan, p, x, found)
            case InsertPlan():
                return self._insert(plan, p, x, found if plan.reads_tables else plan.rows(self, p, x))
            case LockingPlan():
                return self._lock_rows(plan, p, x, found)
            case DeletePlan():
                return self._delete(plan, p, x, found)
        raise NotImplementedError("a part of a WITH that only reads")

    def _lock_rows(self, plan: LockingPlan, p: Tuple, x: Any, found: Found) -> Running:
        rows: list[Tuple] = []
        limit = plan.limit(self, p, x)
        for state, version, *joined in found:
            if limit is not None and len(rows) >= limit:
                break
            if plan.skips_locked and self._blocker(state, plan.mode):
                continue
            while other := self._blocker(state, plan.mode):
                yield from self._wait(other)
            newest = state.seen_by(self)
            if newest is None:
                continue
            self._grant(state, plan.mode)
            combined = (version, *joined)
            # FOR KEY SHARE does not read a row again unless its key has changed.
            if newest is not version and (plan.mode != KEY_SHARE or _changes_key(plan.table, version, newest)):
                combined = plan.recheck(self, p, x, newest, *joined)
            if combined is not None:
                rows.append(plan.value(self, p, x, *combined))
        return StatementResult(rows, len(rows))

    def _update(self, plan: UpdatePlan, p: Tuple, x: Any, found: Found) -> Running:
        rows: list[Tuple] = []
        count = 0
        if plan.table.is_append_only and (found or self._has_locks):
            raise Refused(f"{plan.table.name} are append-only")
        for state, version, others in found:
            old: Tuple | None = version
            while old is not None:
                new = plan.new(self, p, x, old, *others)
                if broken := plan.table.check(new):
                    raise Refused(broken)
                if state.writer is self and state.command == self.command:
                    break
                mode = UPDATE if plan.changes_key and _changes_key(plan.table, old, new) else NO_KEY_UPDATE
                while other := self._blocker(state, mode):
                    yield from self._wait(other)
                newest = state.seen_by(self)
                if newest is not old:
                    if newest is not None:
                        self._grant(state, mode)
                        newest = newest if plan.matches(self, p, x, newest, *others) else None
                    old = newest
                    continue
                self._grant(state, mode)
                if plan.rekeyed:
                    yield from self._rekey(plan.rekeyed, state, old, new)
                self._check_later(plan.foreign_keys, state, old, new)
                self._write(state, new)
                count += 1
                if plan.returning:
                    rows.append(plan.returning(self, p, x, new, *others))
                break
        return StatementResult(rows, count)

    def _delete(self, plan: DeletePlan, p: Tuple, x: Any, found: Found) -> Running:
        rows: list[Tuple] = []
        count = 0
        if plan.table.is_append_only and (found or self._has_locks):
            raise Refused(f"{plan.table.name} are append-only")
        for state, version, others in found:
            if state.writer is self and state.command == self.command:
                continue
            while other := self._blocker(state, UPDATE):
                yield from self._wait(other)
            newest = state.seen_by(self)
            if newest is None:
                continue
            self._grant(state, UPDATE)
            if newest is not version and not plan.matches(self, p, x, newest, *others):
                continue
            if newest is not state.committed:
                self._rekeyed += [(index, state, index.key(newest), None) for index in plan.table.indexes]
            self._write(state, None)
            if plan.table.children:
                self._checks.append((plan.table, newest))
            count += 1
            if plan.returning:
                rows.append(plan.returning(self, p, x, newest, *others))
        return StatementResult(rows, count)

    def _insert(self, plan: InsertPlan, p: Tuple, x: Any, found: Found) -> Running:
        rows: list[Tuple] = []
        count = 0
        table = plan.table
        for new in found:
            if broken := table.check(new):
                raise Refused(broken)
            if plan.arbiter and (yield from self._resolve(plan, p, x, new)):
                count += plan.update is not None
                continue
            state = RowState(table, new, self)
            state.command = self.command
            self.rows[table.number][state] = None
            self._changed.append(state)
            if not self.age:
                self.age = self._database.next_age()
            for index in table.indexes:
                key = index.key(new)
                if key is None:
                    continue
                if index.is_unique and key in self.buckets[index.number] and (yield from self._find(index, key, state)):
                    raise Refused(index.name)
                self._database.add_key(index, key, state)
            self._checks += [(key, new[key.place]) for key in table.foreign_keys if new[key.place] is not None]
            count += 1
            if plan.returning:
                rows.append(plan.returning(self, p, x, new))
        return StatementResult(rows, count)

    def _resolve(self, plan: InsertPlan, p: Tuple, x: Any, new: Tuple) -> Generator["ModelSession", None, bool]:
        """Go the way of ON CONFLICT, if there is a row with the same key."""
        assert plan.arbiter
        key = plan.arbiter.key(new)
        while state := (yield from self._find(plan.arbiter, key)):
            if plan.update is None:
                return True
            if state.writer is self and state.command == self.command:
                raise Refused("ON CONFLICT DO UPDATE cannot affect row a second time")
            if other := self._blocker(state, NO_KEY_UPDATE):
                yield from self._wait(other)
                continue
            self._grant(state, NO_KEY_UPDATE)
            changed = plan.update(self, p, x, state.seen_by(self), new)
            if broken := plan.table.check(changed):
                raise Refused(broken)
            self._check_later(NOTHING, state, new, changed)
            self._write(state, changed)
            return True
        return False

    def _find(
        self, index: TableIndex, key: Any, own: RowState | None = None
    ) -> Generator["ModelSession", None, RowState | None]:
        """The row with this key. Waits for transactions that have written one."""
        while True:
            for state in self.buckets[index.number].get(key, NOTHING):
                if state is own:
                    continue
                if state.writer is not None and state.writer is not self:
                    yield from self._wait(state.writer)
                    break
                version = state.seen_by(self)
                if version is not None and index.key(version) == key:
                    return state  # type: ignore[no-any-return]
            else:
                return None

    def _rekey(self, indexes: Iterable[TableIndex], state: RowState, old: Tuple, new: Tuple) -> Waits:
        for index in indexes:
            before, after = index.key(old), index.key(new)
            if before == after:
                continue
            if after is not None:
                if index.is_unique and (yield from self._find(index, after, state)):
                    raise Refused(index.name)
                self._database.add_key(index, after, state)
            self._rekeyed.append((index, state, before, after))

    def _write(self, state: RowState, new: Tuple | None) -> None:
        if state.writer is None:
            state.writer = self
            self._changed.append(state)
        assert state.writer is self
        state.pending = new
        state.command = self.command

    def _check_later(self, keys: Iterable[ForeignKeyLayout], state: RowState, old: Tuple, new: Tuple) -> None:
        """Check foreign keys that changed, and all if this transaction wrote the version before, as Postgres does."""
        if state.writer is self:
            self._checks += [(key, new[key.place]) for key in state.table.foreign_keys if new[key.place] is not None]
        else:
            self._checks += [
                (key, new[key.place]) for key in keys if new[key.place] is not None and new[key.place] != old[key.place]
            ]

    def _check_references(self) -> Waits:
        """Foreign keys: the rows that new rows refer to exist and are locked, and no row refers to a deleted one."""
        for check in self._checks:
            if isinstance(check[0], ForeignKeyLayout):
                yield from self._check_parent(check[0], check[1])
            else:
                yield from self._check_children(check[0], check[1])
        self._checks.clear()

    def _check_parent(self, key: ForeignKeyLayout, value: Any) -> Waits:
        [place] = key.target.places
        while True:
            for state in self.buckets[key.target.number].get(value, NOTHING):
                version = state.seen_by(self)
                if version is None or version[place] != value:
                    continue
                if other := self._blocker(state, KEY_SHARE):
                    yield from self._wait(other)
                    break
                self._grant(state, KEY_SHARE)
                return
            else:
                raise Refused(key.name)

    def _check_children(self, table: TableLayout, deleted: Tuple) -> Waits:
        for child, key in table.children:
            [target] = key.target.places
            index = next((one for one in child.indexes if one.is_total and one.places == (key.place,)), None)
            again = True
            while again:
                again = False
                found = (
                    self.rows[child.number]
                    if index is None
                    else self.buckets[index.number].get(deleted[target], NOTHING)
                )
                for state in found:
                    version = state.seen_by(self)
                    if version is None or version[key.place] != deleted[target]:
                        continue
                    if other := self._blocker(state, KEY_SHARE):
                        yield from self._wait(other)
                        again = True
                        break
                    raise Refused(key.name)

    def _blocker(self, row: RowState, mode: int) -> "ModelSession | None":
        """The oldest session that has locked the row in a mode that excludes this one."""
        found: ModelSession | None = None
        if row.locks:
            excluded = CONFLICTS[mode]
            for session, held in row.locks.items():
                if held in excluded and session is not self and (found is None or session.age < found.age):
                    found = session
        return found

    def _grant(self, row: RowState, mode: int) -> None:
        if not self._has_locks:
            return
        held = row.locks.get(self)
        if held is None:
            if not self.age:
                self.age = self._database.next_age()
            self._locked.append(row)
            row.locks[self] = mode
        elif held < mode:
            row.locks[self] = mode

    def _wait(self, other: "ModelSession") -> Waits:
        ahead: ModelSession | None = other
        while ahead is not None:
            if ahead is self:
                raise Deadlock
            ahead = ahead.waits_for
        self.waits_for = other
        try:
            yield other
        finally:
            self.waits_for = None


def _changes_key(table: TableLayout, old: Tuple, new: Tuple) -> bool:
    return any(old[place] != new[place] for place in table.key_places)
