"""The project's SQL, compiled once for each statement: from its text, by way of sqlglot, to Python functions.

The functions get the session `s` (its database's rows and index buckets, and which versions it sees), the values `p` of
the placeholders, the results `x` of the parts of a WITH, and then rows. Whatever reads tables runs before the statement
waits for anything, so it sees what was committed when the statement began. Only the subset that the ledger and its
neighbours use is there; anything else raises NotImplementedError.
"""

import functools
import itertools
import re
from collections.abc import Iterable

import msgspec
import sqlglot
from sqlglot import exp

from cadenza.parts.postgres.session import for_postgres
from cadenza.store.statements import PickValues, Statement
from tests.simulation.expressions import Expressions, Scope, conjuncts
from tests.simulation.queries import Function, Lines, QueryCompiler, TableSource, limit_of, listed
from tests.simulation.tables import ForeignKeyLayout, Kind, TableIndex, TableLayout, layouts

KEY_SHARE, SHARE, NO_KEY_UPDATE, UPDATE = 1, 2, 3, 4  # the modes of row locks, weakest first


class SelectPlan(msgspec.Struct, frozen=True):
    """A query without locks."""

    rows: Function


class LockingPlan(msgspec.Struct, frozen=True):
    """A query that locks the rows of one table. `scan` finds them, each with the rows that are joined to it."""

    table: TableLayout
    mode: int
    skips_locked: bool
    scan: Function
    recheck: Function  # the joined rows, with a newer version of the locked one; None if they no longer match
    value: Function
    limit: Function


class UpdatePlan(msgspec.Struct, frozen=True):
    table: TableLayout
    scan: Function
    matches: Function
    new: Function
    returning: Function | None
    rekeyed: list[TableIndex]  # the indexes on the columns that it sets
    changes_key: bool
    foreign_keys: list[ForeignKeyLayout]  # on the columns that it sets


class DeletePlan(msgspec.Struct, frozen=True):
    table: TableLayout
    scan: Function
    matches: Function
    returning: Function | None


class InsertPlan(msgspec.Struct, frozen=True):
    table: TableLayout
    rows: Function
    reads_tables: bool
    arbiter: TableIndex | None  # of ON CONFLICT
    update: Function | None  # of DO UPDATE
    returning: Function | None


class CombinedPlan(msgspec.Struct, frozen=True):
    """WITH: its parts by name, in the order in which Postgres runs them."""

    parts: "list[tuple[str, ChangePlan]]"
    main: SelectPlan


ChangePlan = SelectPlan | LockingPlan | UpdatePlan | DeletePlan | InsertPlan
StatementPlan = ChangePlan | CombinedPlan


class Compiled(msgspec.Struct, frozen=True):
    """A statement: how its values are ordered, and what it does."""

    pick: PickValues
    plan: StatementPlan
    text: str


@functools.cache
def compile_statement(kind: Kind, statement: Statement) -> Compiled:
    if kind == "postgres":
        text, pick = for_postgres(statement)
    else:
        numbers = itertools.count(1)
        text, pick = re.sub(r"\?", lambda _: f"${next(numbers)}", statement.sqlite_text), statement.sqlite_values
    return Compiled(pick, compile_text(kind, text), text)


@functools.cache
def compile_text(kind: Kind, text: str) -> StatementPlan:
    """The plan of a statement whose values have numbers."""
    return Compiler(layouts(kind)).statement(sqlglot.parse_one(text, dialect="postgres"))


class Compiler(QueryCompiler):
    """Compiles one statement."""

    def statement(self, node: exp.Expr) -> StatementPlan:
        parts = node.args.get("with_")
        if parts is None:
            return self._change(node)
        plans: dict[str, ChangePlan] = {}
        for part in parts.expressions:
            plans[part.alias] = self._change(part.this)
            self.parts[part.alias] = [one.alias_or_name for one in part.this.expressions]
        named = [table.name for table in node.find_all(exp.Table) if table.parent_select is not None]
        used = [name for name in plans if name in named and _is_used(node, name)]
        late = [name for name in reversed(plans) if name not in used]
        main = self._change(node)
        assert isinstance(main, SelectPlan)
        return CombinedPlan([(name, plans[name]) for name in (*used, *late)], main)

    def _change(self, node: exp.Expr) -> ChangePlan:
        match node:
            case exp.Select() if node.args.get("locks"):
                return self._locking(node)
            case exp.Select():
                return SelectPlan(self.made(self.select(node, Scope(), "rows")[0]))
            case exp.Update():
                return self._update(node)
            case exp.Delete():
                return self._delete(node)
            case exp.Insert():
                return self._insert(node)
        raise NotImplementedError(f"not in the subset: {node.sql('postgres')}")

    def _locking(self, node: exp.Select) -> LockingPlan:
        [lock] = node.args["locks"]
        if node.args.get("group") or node.args.get("distinct"):
            raise NotImplementedError(f"not in the subset: {node.sql('postgres')}")
        scope = Scope()
        sources = self.sources(node, scope)
        first, *others = sources
        if first.layout is None or any(source.on is None for source in others):
            raise NotImplementedError(f"not in the subset: {node.sql('postgres')}")
        if [one.name for one in lock.expressions] not in ([], [first.alias]) or (others and not lock.expressions):
            raise NotImplementedError(f"not in the subset: {node.sql('postgres')}")
        expressions = Expressions(scope, self.subquery)
        order = [(one.this, bool(one.args.get("desc"))) for one in listed(node, "order")]
        keys = "".join(f"{self.sort_key(expressions.value(key))}, " for key, _ in order)
        where = conjuncts(node.args["where"].this if node.args.get("where") else None)
        rows = [source.row for source in sources]
        body = self.loops(sources, where, expressions, [f"out.append((({keys}), ({first.state}, {', '.join(rows)})))"])
        sort = [
            f"out.sort(key=lambda one: one[0][{place}], reverse={is_descending})"
            for place, (_, is_descending) in reversed(list(enumerate(order)))
        ]
        scan = self.write([], ["out = []", *body, *sort, "return [one[1] for one in out]"])
        again = [f"if not ({expressions.filter(one)}): return None" for one in where]
        for source in others:
            on = " and ".join(expressions.filter(one) for one in source.on or [])
            again.append(f"if {source.row} is not None and not ({on}): {source.row} = None")
        recheck = self.write(rows, [*again, f"return ({', '.join(rows)},)"])
        outputs = "".join(f"{expressions.value(one)[0]}, " for one in self.outputs(node, scope))
        value = self.write(rows, [f"return ({outputs})"])
        limit = self.write([], [f"return {limit_of(node, expressions)[0]}"])
        is_key, is_update = bool(lock.args.get("key")), bool(lock.args.get("update"))
        mode = (NO_KEY_UPDATE if is_key else UPDATE) if is_update else (KEY_SHARE if is_key else SHARE)
        if lock.args.get("wait"):
            raise NotImplementedError(f"not in the subset: {node.sql('postgres')}")
        skips = lock.args.get("wait") is False
        return LockingPlan(first.layout, mode, skips, *(self.made(name) for name in (scan, recheck, value, limit)))

    def _target(self, node: exp.Expr, others: list[exp.Expr]) -> tuple[TableSource, list[TableSource], Scope]:
        """The table that a statement changes, and the other sources, over which the outer loops go."""
        scope = Scope()
        target = self.source(node.this, scope)
        if target.layout is None:
            raise NotImplementedError(f"not in the subset: {node.sql('postgres')}")
        return target, [self.source(one, scope) for one in others], scope

    def _update(self, node: exp.Update) -> UpdatePlan:
        begin = node.args.get("from_")
        target, others, scope = self._target(node, [begin.this] if begin is not None else [])
        assert target.layout is not None
        early: Lines = []  # the values of queries in SET are read before the statement waits

        def read_early(query: exp.Expr, outer: Scope) -> tuple[str, bool]:
            early.append(self.subquery(query, outer)[0])
            return f"v[{len(early) - 1}]", True

        new_values = {
            one.this.name: Expressions(scope, read_early).value(one.expression)[0] for one in node.expressions
        }
        scan, matches, arguments = self._scan(node, target, others, Expressions(scope, self.subquery), early)
        columns = [new_values.get(name, f"{target.row}[{place}]") for name, place in target.layout.places.items()]
        new = self.write(arguments, [f"return ({', '.join(columns)},)"])
        rekeyed = [index for index in target.layout.indexes if _is_touched(index, target.layout, new_values)]
        changed = {target.layout.places[name] for name in new_values}
        return UpdatePlan(
            target.layout,
            self.made(scan),
            self.made(matches),
            self.made(new),
            self._returning(node, arguments, scope),
            rekeyed,
            bool(changed & {*target.layout.key_places}),
            [key for key in target.layout.foreign_keys if key.place in changed],
        )

    def _delete(self, node: exp.Delete) -> DeletePlan:
        target, others, scope = self._target(node, node.args.get("using") or [])
        assert target.layout is not None
        scan, matches, arguments = self._scan(node, target, others, Expressions(scope, self.subquery), [])
        made = (self.made(scan), self.made(matches))
        return DeletePlan(target.layout, *made, self._returning(node, arguments, scope))

    def _scan(
        self,
        node: exp.Expr,
        target: TableSource,
        others: list[TableSource],
        expressions: Expressions,
        early: Lines,
    ) -> tuple[str, str, list[str]]:
        """Write the search for rows to change, and the check of a newer version of one."""
        where = conjuncts(node.args["where"].this if node.args.get("where") else None)
        arguments = [target.row, *(source.row for source in others), "v"]
        values = "".join(f"{one}, " for one in early)
        found = f"({target.state}, {target.row}, ({''.join(f'{source.row}, ' for source in others)}({values}),))"
        loops = self.loops([*others, target], where, expressions, [f"out.append({found})"])
        scan = self.write([], ["out = []", *loops, "return out"])
        matches = self.write(arguments, [f"return {' and '.join(expressions.filter(one) for one in where) or True}"])
        return scan, matches, arguments

    def _returning(self, node: exp.Expr, arguments: list[str], scope: Scope) -> Function | None:
        returning = node.args.get("returning")
        if returning is None:
            return None
        expressions = Expressions(scope, self.subquery)
        outputs = "".join(f"{expressions.value(one)[0]}, " for one in returning.expressions)
        return self.made(self.write(arguments, [f"return ({outputs})"]))

    def _insert(self, node: exp.Insert) -> InsertPlan:
        layout = self.tables.tables[node.this.this.name]
        names = [one.name for one in node.this.expressions]
        if isinstance(node.expression, exp.Values):
            expressions = Expressions(Scope(), self.subquery)
            given = [[expressions.value(one)[0] for one in row.expressions] for row in node.expression.expressions]
            body = [f"return [{', '.join(self._full_row(layout, names, row) for row in given)}]"]
            rows, reads_tables = self.write([], body), False
        else:
            select, _ = self.select(node.expression, Scope(), "rows")
            given_row = [f"one[{place}]" for place in range(len(names))]
            body = [f"return ({self._full_row(layout, names, given_row)} for one in {select}(s, p, x))"]
            rows, reads_tables = self.write([], body), bool(node.expression.find(exp.Table))
        arbiter, update = self._conflict(node, layout)
        scope = Scope()
        scope.sources[layout.name] = layout.source("r")
        return InsertPlan(layout, self.made(rows), reads_tables, arbiter, update, self._returning(node, ["r"], scope))

    def _full_row(self, layout: TableLayout, names: list[str], given: list[str]) -> str:
        values = dict(zip(names, given, strict=True))
        columns = [
            values.get(name)
            or (f"s.next_id({layout.number})" if place == layout.identity else repr(layout.defaults[place]))
            for name, place in layout.places.items()
        ]
        return f"({', '.join(columns)},)"

    def _conflict(self, node: exp.Insert, layout: TableLayout) -> tuple[TableIndex | None, Function | None]:
        conflict = node.args.get("conflict")
        if conflict is None:
            return None, None
        columns = {one.this.name for one in conflict.args["conflict_keys"]}
        arbiter = next(index for index in layout.unique if {*index.columns} == columns)
        if conflict.args["action"].name == "DO NOTHING":
            return arbiter, None
        scope = Scope()
        scope.sources[layout.name] = layout.source("r")
        scope.sources["excluded"] = layout.source("e")
        expressions = Expressions(scope, self.subquery)
        values = {one.this.name: expressions.value(one.expression)[0] for one in conflict.expressions}
        if any(_is_touched(index, layout, values) for index in layout.indexes) or conflict.args.get("where"):
            raise NotImplementedError(f"not in the subset: {node.sql('postgres')}")
        columns_ = [values.get(name, f"r[{place}]") for name, place in layout.places.items()]
        return arbiter, self.made(self.write(["r", "e"], [f"return ({', '.join(columns_)},)"]))


def _is_touched(index: TableIndex, layout: TableLayout, changed: Iterable[str]) -> bool:
    """Whether a change of these columns can change the key of a row, or whether a partial index has it."""
    return bool({*index.columns} & {*changed}) or (index.is_partial and not layout.is_append_only)


def _is_used(main: exp.Expr, name: str) -> bool:
    """Whether the main query of a WITH reads a part."""
    queries = [one for one in main.find_all(exp.Table) if one.name == name]
    return any(one.find_ancestor(exp.CTE) is None for one in queries)
