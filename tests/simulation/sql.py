"""The project's SQL, compiled once for each statement: from its text, by way of sqlglot, to Python functions.

The functions get the session `s` (its database's rows and index buckets, and which versions it sees), the values `p` of
the placeholders, the results `x` of the parts of a WITH, and then rows. Whatever reads tables runs before the statement
waits for anything, so it sees what was committed when the statement began. Only the subset that the ledger and its
neighbours use is there; anything else raises NotImplementedError.
"""

import functools
import itertools
import re
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import sqlglot
from sqlglot import exp

from cadenza.store.postgres.session import for_postgres
from cadenza.store.statements import PickValues, Statement
from tests.simulation.expressions import AGGREGATES, HELPERS, Expressions, Scope, SourceColumns, conjuncts
from tests.simulation.tables import ForeignKeyLayout, Kind, Layouts, TableIndex, TableLayout, layouts

KEY_SHARE, SHARE, NO_KEY_UPDATE, UPDATE = 1, 2, 3, 4  # the modes of row locks, weakest first
INDENT = "    "
NAMES: dict[str, Any] = {**HELPERS, "NOTHING": (), "NONE": (None,)}

Function = Callable[..., Any]
Lines = list[str]


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
    return Compiled(pick, Compiler(layouts(kind)).statement(sqlglot.parse_one(text, dialect="postgres")), text)


class TableSource:
    """A table, unnest or part of a WITH in a query; `on` is None unless it is joined by an outer join."""

    def __init__(self, number: int, node: exp.Expr, on: list[exp.Expr] | None = None) -> None:
        self.number = number
        self.node = node
        self.on = on
        self.row = f"r{number}"
        self.state = f"c{number}"
        self.layout: TableLayout | None = None
        self.alias = node.alias_or_name or "unnest"


class Compiler:
    """Compiles one statement. All of its functions are written first, and then made at once."""

    def __init__(self, tables: Layouts) -> None:
        self._tables = tables
        self._lines: Lines = []
        self._numbers = itertools.count()
        self._names = dict(NAMES)
        self._parts: dict[str, list[str]] = {}  # the columns of each part of a WITH

    def statement(self, node: exp.Expr) -> StatementPlan:
        parts = node.args.get("with_")
        if parts is None:
            return self._change(node)
        plans: dict[str, ChangePlan] = {}
        for part in parts.expressions:
            plans[part.alias] = self._change(part.this)
            self._parts[part.alias] = [one.alias_or_name for one in part.this.expressions]
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
                return SelectPlan(self._made(self._select(node, Scope(), "rows")[0]))
            case exp.Update():
                return self._update(node)
            case exp.Delete():
                return self._delete(node)
            case exp.Insert():
                return self._insert(node)
        raise NotImplementedError(f"not in the subset: {node.sql('postgres')}")

    def _made(self, name: str) -> Function:
        """The function of this name. Those that were written are made now."""
        if self._lines:
            exec("\n".join(self._lines), self._names)
            self._lines.clear()
        made: Function = self._names[name]
        return made

    def _write(self, arguments: Iterable[str], body: Lines) -> str:
        name = f"f{next(self._numbers)}"
        self._lines += [f"def {name}({', '.join(('s', 'p', 'x', *arguments))}):", *(INDENT + line for line in body)]
        return name

    # Queries

    def _select(self, node: exp.Select, scope: Scope, wants: str) -> tuple[str, list[str]]:
        """Write a query. Return the name of its function, and the rows of outer queries that it needs."""
        sources = self._sources(node, scope)
        expressions = Expressions(scope, self._subquery)
        grouped = [
            self._output(node, one) for one in (node.args["group"].expressions if node.args.get("group") else [])
        ]
        outputs = self._outputs(node, scope)
        order = [(self._output(node, one.this), bool(one.args.get("desc"))) for one in _list(node, "order")]
        having = node.args["having"].this if node.args.get("having") else None
        found = dict.fromkeys(
            aggregate
            for one in (*outputs, *[key for key, _ in order], having)
            if one is not None
            for aggregate in one.find_all(*AGGREGATES)
            if aggregate.parent_select is node
        )

        def output() -> Lines:
            values = f"({''.join(f'{expressions.value(one)[0]}, ' for one in outputs)})"
            if wants == "exists":
                return ["return True"]
            if not order:
                return [f"out.append({values})"]
            keys = "".join(f"{self._sort_key(expressions.value(key))}, " for key, _ in order)
            return [f"out.append((({keys}), {values}))"]

        def aggregate() -> tuple[Lines, Lines]:
            begin, add = [], []
            for number, one in enumerate(found):
                begin.append(f"a{number} = {0 if isinstance(one, exp.Count) else None}")
                add += _accumulate(f"a{number}", one, expressions)
            expressions.aggregates = {one: f"a{number}" for number, one in enumerate(found)}
            return begin, add

        where = conjuncts(node.args["where"].this if node.args.get("where") else None)
        rows = "".join(f"{source.row}, " for source in sources)
        if node.args.get("group"):
            keys = "".join(f"{expressions.value(one)[0]}, " for one in grouped)
            body = self._loops(sources, where, expressions, [f"groups.setdefault(({keys}), []).append(({rows}))"])
            begin, add = aggregate()
            emit = output() if having is None else [f"if {expressions.filter(having)}:", *_indented(output())]
            loop = [*begin, f"for {rows} in group:", *_indented(add or ["pass"]), *emit]
            body = ["groups = {}", *body, "for group in groups.values():", *_indented(loop)]
        elif found:
            begin, add = aggregate()
            body = [*begin, *self._loops(sources, where, expressions, add), *output()]
        else:
            body = self._loops(sources, where, expressions, output())
        body = (
            ["out = []", *body, *self._finish(node, order, expressions)]
            if wants != "exists"
            else [*body, "return False"]
        )
        outer = list(scope.outer_used)
        return self._write(outer, body), outer

    def _finish(self, node: exp.Select, order: list[tuple[exp.Expr, bool]], expressions: Expressions) -> Lines:
        lines = [
            f"out.sort(key=lambda one: one[0][{place}], reverse={is_descending})"
            for place, (_, is_descending) in reversed(list(enumerate(order)))
        ]
        lines = ["if len(out) > 1:", *_indented(lines), "out = [one[1] for one in out]"] if order else []
        if node.args.get("distinct"):
            lines.append("out = list(dict.fromkeys(out))")
        limit, offset = _limit(node, expressions)
        if limit != "None":
            lines.append(f"if {limit} is not None: out = out[{offset} or 0:({offset} or 0) + {limit}]")
        return [*lines, "return out"]

    def _sort_key(self, value: tuple[str, bool]) -> str:
        """NULL comes last on Postgres, and first on SQLite."""
        source, nullable = value
        if not nullable:
            return source
        return f"({source} is {'' if self._tables.kind == 'postgres' else 'not '}None, {source})"

    def _outputs(self, node: exp.Select, scope: Scope) -> list[exp.Expr]:
        found: list[exp.Expr] = []
        for one in node.expressions:
            if isinstance(one, exp.Star):
                found += [exp.column(name, table) for table, source in scope.sources.items() for name in source]
            else:
                found.append(one)
        return found

    def _output(self, node: exp.Select, one: exp.Expr) -> exp.Expr:
        """An expression of GROUP BY or ORDER BY: a number names one of the query's results."""
        if isinstance(one, exp.Literal) and not one.is_string:
            found: exp.Expr = node.expressions[int(one.this) - 1]
            return found.this if isinstance(found, exp.Alias) else found
        return one

    def _subquery(self, node: exp.Expr, scope: Scope) -> tuple[str, bool]:
        query = node.args["query"].this if isinstance(node, exp.In) else node.this
        wants = "exists" if isinstance(node, exp.Exists) else "rows"
        name, outer = self._select(query, Scope(scope), wants)
        call = f"{name}({', '.join(('s', 'p', 'x', *outer))})"
        if isinstance(node, exp.Exists):
            return call, False
        if isinstance(node, exp.In):
            return f"[one for one, in {call}]", False
        return f"next((one for one, in {call}), None)", True

    def _sources(self, node: exp.Expr, scope: Scope) -> list[TableSource]:
        """The tables of a query, in the order of their loops; the scope gets their columns."""
        begin = node.args.get("from_")
        joins = node.args.get("joins") or []
        nodes: list[tuple[exp.Expr, list[exp.Expr] | None]] = [(begin.this, None)] if begin is not None else []
        for join in joins:
            on = conjuncts(join.args.get("on"))
            if join.side == "LEFT":
                nodes.append((join.this, on))
            elif join.side or join.args.get("using"):
                raise NotImplementedError(f"not in the subset: {join.sql('postgres')}")
            else:
                nodes.append((join.this, None))
                where = [*conjuncts(node.args["where"].this if node.args.get("where") else None), *on]
                node.set("where", exp.Where(this=exp.and_(*where, wrap=False)))
        return [self._source(one, scope, on) for one, on in nodes]

    def _source(self, node: exp.Expr, scope: Scope, on: list[exp.Expr] | None = None) -> TableSource:
        source = TableSource(next(self._numbers), node, on)
        is_optional = on is not None
        if isinstance(node, exp.Unnest):
            names = [one.name for one in node.args["alias"].columns] if node.args.get("alias") else []
            names = names or [f"column{number}" for number in range(len(node.expressions))]
            columns = SourceColumns(source.row, dict.fromkeys(names, True), is_optional=is_optional)
        elif isinstance(node, exp.Table) and node.name in self._parts:
            columns = SourceColumns(source.row, dict.fromkeys(self._parts[node.name], True), is_optional=is_optional)
        elif isinstance(node, exp.Table) and node.name in self._tables.tables:
            source.layout = self._tables.tables[node.name]
            columns = source.layout.source(source.row, is_optional=is_optional)
        else:
            raise NotImplementedError(f"not in the subset: {node.sql('postgres')}")
        scope.sources[source.alias] = columns
        return source

    def _loops(self, sources: list[TableSource], where: list[exp.Expr], expressions: Expressions, body: Lines) -> Lines:
        """Nested loops over the sources that run `body` for each combination that meets the conditions."""
        bound, left = set[str](), list(where)
        loops: list[Lines] = []
        for source in sources:
            bound.add(source.row)
            if source.on is not None:
                loops.append(self._outer_loop(source, bound, expressions))
                continue
            usable = [one for one in left if self._needs(one, expressions.scope) <= bound]
            left = [one for one in left if one not in usable]
            loops.append(self._inner_loop(source, usable, bound, expressions))
        if left:
            loops.append([f"if {' and '.join(expressions.filter(one) for one in left)}:"])
        for loop in reversed(loops):
            body = [*loop, *_indented(body, len(loop[-1]) - len(loop[-1].lstrip()) + len(INDENT))]
        return body

    def _inner_loop(
        self, source: TableSource, usable: list[exp.Expr], bound: set[str], expressions: Expressions
    ) -> Lines:
        if source.layout is None:
            lines = [f"for {source.row} in {self._plain_rows(source, expressions)}:"]
            return (
                [*lines, INDENT + f"if {' and '.join(expressions.filter(one) for one in usable)}:"] if usable else lines
            )
        lines, known = self._path(source, usable, bound, expressions)
        conditions = [f"{source.row} is not None", *known]
        depth = INDENT * len(lines)
        return [
            *lines,
            depth
            + f"{source.row} = {source.state}.pending if {source.state}.writer is s else {source.state}.committed",
            depth + f"if {' and '.join(conditions)}:",
        ]

    def _outer_loop(self, source: TableSource, bound: set[str], expressions: Expressions) -> Lines:
        columns = expressions.scope.sources[source.alias]
        columns.is_optional = False  # inside of its own condition
        assert source.layout is not None
        assert source.on is not None
        lines, known = self._path(source, source.on, bound, expressions)
        columns.is_optional = True
        version = (
            f"({source.row} := {source.state}.pending if {source.state}.writer is s else {source.state}.committed)"
        )
        conditions = " and ".join([f"{version} is not None", *known])
        heads = " ".join(line.strip().removesuffix(":") for line in lines)
        return [f"for {source.row} in [{source.row} {heads} if {conditions}] or NONE:"]

    def _path(
        self, source: TableSource, usable: list[exp.Expr], bound: set[str], expressions: Expressions
    ) -> tuple[Lines, Lines]:
        """The loop over the rows that can match, by an index if one fits, and the conditions that are left."""
        assert source.layout is not None
        equal: dict[str, tuple[exp.Expr, exp.Expr]] = {}
        for one in usable:
            if isinstance(one, exp.EQ):
                for column, other in ((one.this, one.expression), (one.expression, one.this)):
                    is_own = isinstance(column, exp.Column) and expressions.scope.find(column).variable == source.row
                    if is_own and self._needs(other, expressions.scope) <= bound - {source.row}:
                        equal.setdefault(column.name, (one, other))
        fitting = [
            index for index in source.layout.indexes if index.is_total and all(name in equal for name in index.columns)
        ]
        fitting = [
            index
            for index in fitting
            if len(index.columns) == 1 or not any(isinstance(equal[name][1], exp.Any) for name in index.columns)
        ]
        if not fitting:
            lines = [f"for {source.state} in s.rows[{source.layout.number}]:"]
            return lines, [expressions.filter(one) for one in usable]
        index = max(fitting, key=lambda one: (one.is_unique, len(one.columns)))
        keys = [expressions.value(equal[name][1])[0] for name in index.columns]
        read = [expressions.scope.sources[source.alias].read(name)[0] for name in index.columns]
        lines = []
        if isinstance(equal[index.columns[0]][1], exp.Any):
            lines.append(f"for k{source.number} in dict.fromkeys({keys[0]}):")
            keys = [f"k{source.number}"]
        key = keys[0] if len(keys) == 1 else f"({', '.join(keys)})"
        lines.append(INDENT * len(lines) + f"for {source.state} in s.buckets[{index.number}].get({key}, NOTHING):")
        used = [equal[name][0] for name in index.columns]
        known = [f"{column} == {value}" for column, value in zip(read, keys, strict=True)]
        return lines, [*known, *(expressions.filter(one) for one in usable if one not in used)]

    def _plain_rows(self, source: TableSource, expressions: Expressions) -> str:
        if isinstance(source.node, exp.Unnest):
            return f"zip({', '.join(expressions.value(one)[0] for one in source.node.expressions)})"
        return f"x[{source.node.name!r}]"

    def _needs(self, node: exp.Expr, scope: Scope) -> set[str]:
        """The variables of this query's own tables that a condition reads."""
        own = {source.variable for source in scope.sources.values()}
        if node.find(exp.Select):
            return own
        return {scope.find(column).variable for column in node.find_all(exp.Column)} & own

    # Statements that lock and change

    def _locking(self, node: exp.Select) -> LockingPlan:
        [lock] = node.args["locks"]
        if node.args.get("group") or node.args.get("distinct"):
            raise NotImplementedError(f"not in the subset: {node.sql('postgres')}")
        scope = Scope()
        sources = self._sources(node, scope)
        first, *others = sources
        if first.layout is None or any(source.on is None for source in others):
            raise NotImplementedError(f"not in the subset: {node.sql('postgres')}")
        if [one.name for one in lock.expressions] not in ([], [first.alias]) or (others and not lock.expressions):
            raise NotImplementedError(f"not in the subset: {node.sql('postgres')}")
        expressions = Expressions(scope, self._subquery)
        order = [(one.this, bool(one.args.get("desc"))) for one in _list(node, "order")]
        keys = "".join(f"{self._sort_key(expressions.value(key))}, " for key, _ in order)
        where = conjuncts(node.args["where"].this if node.args.get("where") else None)
        rows = [source.row for source in sources]
        body = self._loops(sources, where, expressions, [f"out.append((({keys}), ({first.state}, {', '.join(rows)})))"])
        sort = [
            f"out.sort(key=lambda one: one[0][{place}], reverse={is_descending})"
            for place, (_, is_descending) in reversed(list(enumerate(order)))
        ]
        scan = self._write([], ["out = []", *body, *sort, "return [one[1] for one in out]"])
        again = [f"if not ({expressions.filter(one)}): return None" for one in where]
        for source in others:
            on = " and ".join(expressions.filter(one) for one in source.on or [])
            again.append(f"if {source.row} is not None and not ({on}): {source.row} = None")
        recheck = self._write(rows, [*again, f"return ({', '.join(rows)},)"])
        outputs = "".join(f"{expressions.value(one)[0]}, " for one in self._outputs(node, scope))
        value = self._write(rows, [f"return ({outputs})"])
        limit = self._write([], [f"return {_limit(node, expressions)[0]}"])
        is_key, is_update = bool(lock.args.get("key")), bool(lock.args.get("update"))
        mode = (NO_KEY_UPDATE if is_key else UPDATE) if is_update else (KEY_SHARE if is_key else SHARE)
        if lock.args.get("wait"):
            raise NotImplementedError(f"not in the subset: {node.sql('postgres')}")
        skips = lock.args.get("wait") is False
        return LockingPlan(first.layout, mode, skips, *(self._made(name) for name in (scan, recheck, value, limit)))

    def _target(self, node: exp.Expr, others: list[exp.Expr]) -> tuple[TableSource, list[TableSource], Scope]:
        """The table that a statement changes, and the other sources, over which the outer loops go."""
        scope = Scope()
        target = self._source(node.this, scope)
        if target.layout is None:
            raise NotImplementedError(f"not in the subset: {node.sql('postgres')}")
        return target, [self._source(one, scope) for one in others], scope

    def _update(self, node: exp.Update) -> UpdatePlan:
        begin = node.args.get("from_")
        target, others, scope = self._target(node, [begin.this] if begin is not None else [])
        assert target.layout is not None
        early: Lines = []  # the values of queries in SET are read before the statement waits

        def read_early(query: exp.Expr, outer: Scope) -> tuple[str, bool]:
            early.append(self._subquery(query, outer)[0])
            return f"v[{len(early) - 1}]", True

        new_values = {
            one.this.name: Expressions(scope, read_early).value(one.expression)[0] for one in node.expressions
        }
        scan, matches, arguments = self._scan(node, target, others, Expressions(scope, self._subquery), early)
        columns = [new_values.get(name, f"{target.row}[{place}]") for name, place in target.layout.places.items()]
        new = self._write(arguments, [f"return ({', '.join(columns)},)"])
        rekeyed = [index for index in target.layout.indexes if _is_touched(index, target.layout, new_values)]
        changed = {target.layout.places[name] for name in new_values}
        return UpdatePlan(
            target.layout,
            self._made(scan),
            self._made(matches),
            self._made(new),
            self._returning(node, arguments, scope),
            rekeyed,
            bool(changed & {*target.layout.key_places}),
            [key for key in target.layout.foreign_keys if key.place in changed],
        )

    def _delete(self, node: exp.Delete) -> DeletePlan:
        target, others, scope = self._target(node, node.args.get("using") or [])
        assert target.layout is not None
        scan, matches, arguments = self._scan(node, target, others, Expressions(scope, self._subquery), [])
        made = (self._made(scan), self._made(matches))
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
        loops = self._loops([*others, target], where, expressions, [f"out.append({found})"])
        scan = self._write([], ["out = []", *loops, "return out"])
        matches = self._write(arguments, [f"return {' and '.join(expressions.filter(one) for one in where) or True}"])
        return scan, matches, arguments

    def _returning(self, node: exp.Expr, arguments: list[str], scope: Scope) -> Function | None:
        returning = node.args.get("returning")
        if returning is None:
            return None
        expressions = Expressions(scope, self._subquery)
        outputs = "".join(f"{expressions.value(one)[0]}, " for one in returning.expressions)
        return self._made(self._write(arguments, [f"return ({outputs})"]))

    def _insert(self, node: exp.Insert) -> InsertPlan:
        layout = self._tables.tables[node.this.this.name]
        names = [one.name for one in node.this.expressions]
        if isinstance(node.expression, exp.Values):
            expressions = Expressions(Scope(), self._subquery)
            given = [[expressions.value(one)[0] for one in row.expressions] for row in node.expression.expressions]
            body = [f"return [{', '.join(self._full_row(layout, names, row) for row in given)}]"]
            rows, reads_tables = self._write([], body), False
        else:
            select, _ = self._select(node.expression, Scope(), "rows")
            given_row = [f"one[{place}]" for place in range(len(names))]
            body = [f"return [{self._full_row(layout, names, given_row)} for one in {select}(s, p, x)]"]
            rows, reads_tables = self._write([], body), bool(node.expression.find(exp.Table))
        arbiter, update = self._conflict(node, layout)
        scope = Scope()
        scope.sources[layout.name] = layout.source("r")
        return InsertPlan(layout, self._made(rows), reads_tables, arbiter, update, self._returning(node, ["r"], scope))

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
        expressions = Expressions(scope, self._subquery)
        values = {one.this.name: expressions.value(one.expression)[0] for one in conflict.expressions}
        if any(_is_touched(index, layout, values) for index in layout.indexes) or conflict.args.get("where"):
            raise NotImplementedError(f"not in the subset: {node.sql('postgres')}")
        columns_ = [values.get(name, f"r[{place}]") for name, place in layout.places.items()]
        return arbiter, self._made(self._write(["r", "e"], [f"return ({', '.join(columns_)},)"]))


def _is_touched(index: TableIndex, layout: TableLayout, changed: Iterable[str]) -> bool:
    """Whether a change of these columns can change the key of a row, or whether a partial index has it."""
    return bool({*index.columns} & {*changed}) or (index.is_partial and not layout.is_append_only)


def _is_used(main: exp.Expr, name: str) -> bool:
    """Whether the main query of a WITH reads a part."""
    queries = [one for one in main.find_all(exp.Table) if one.name == name]
    return any(one.find_ancestor(exp.CTE) is None for one in queries)


def _accumulate(variable: str, node: exp.Expr, expressions: Expressions) -> Lines:
    if isinstance(node, exp.Count):
        if isinstance(node.this, exp.Star):
            return [f"{variable} += 1"]
        return [f"if {expressions.value(node.this)[0]} is not None: {variable} += 1"]
    source, _ = expressions.value(node.this)
    combined = f"{variable} + n" if isinstance(node, exp.Sum) else f"{node.key}({variable}, n)"
    return [f"if (n := {source}) is not None: {variable} = n if {variable} is None else {combined}"]


def _limit(node: exp.Select, expressions: Expressions) -> tuple[str, str]:
    limit, offset = node.args.get("limit"), node.args.get("offset")
    return (
        expressions.value(limit.expression)[0] if limit is not None else "None",
        expressions.value(offset.expression)[0] if offset is not None else "0",
    )


def _list(node: exp.Expr, name: str) -> list[exp.Expr]:
    found = node.args.get(name)
    return list(found.expressions) if found is not None else []


def _indented(lines: Lines, width: int = len(INDENT)) -> Lines:
    return [" " * width + line for line in lines]
