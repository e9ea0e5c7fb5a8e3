"""Queries, written as Python functions: nested loops over tables, by an index wherever one fits.

A function gets the session `s` (its database's rows and index buckets, and which versions it sees), the values `p` of
the placeholders, the results `x` of the parts of a WITH, and then the rows of outer queries.
"""

import itertools
from collections.abc import Callable, Iterable
from typing import Any

from sqlglot import exp

from tests.simulation.expressions import AGGREGATES, HELPERS, Expressions, Scope, SourceColumns, conjuncts
from tests.simulation.tables import Layouts, TableLayout

INDENT = "    "
NAMES: dict[str, Any] = {**HELPERS, "NOTHING": (), "NONE": (None,)}

Function = Callable[..., Any]
Lines = list[str]


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


class QueryCompiler:
    """Compiles the queries of one statement. All of its functions are written first, and then made at once."""

    def __init__(self, tables: Layouts) -> None:
        self.tables = tables
        self._lines: Lines = []
        self._numbers = itertools.count()
        self._names = dict(NAMES)
        self.parts: dict[str, list[str]] = {}  # the columns of each part of a WITH

    def made(self, name: str) -> Function:
        """The function of this name. Those that were written are made now."""
        if self._lines:
            exec("\n".join(self._lines), self._names)
            self._lines.clear()
        made: Function = self._names[name]
        return made

    def write(self, arguments: Iterable[str], body: Lines) -> str:
        name = f"f{next(self._numbers)}"
        self._lines += [f"def {name}({', '.join(('s', 'p', 'x', *arguments))}):", *(INDENT + line for line in body)]
        return name

    def select(self, node: exp.Select, scope: Scope, wants: str) -> tuple[str, list[str]]:
        """Write a query. Return the name of its function, and the rows of outer queries that it needs."""
        sources = self.sources(node, scope)
        expressions = Expressions(scope, self.subquery)
        grouped = [
            self._output(node, one) for one in (node.args["group"].expressions if node.args.get("group") else [])
        ]
        outputs = self.outputs(node, scope)
        order = [(self._output(node, one.this), bool(one.args.get("desc"))) for one in listed(node, "order")]
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
            keys = "".join(f"{self.sort_key(expressions.value(key))}, " for key, _ in order)
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
            body = self.loops(sources, where, expressions, [f"groups.setdefault(({keys}), []).append(({rows}))"])
            begin, add = aggregate()
            emit = output() if having is None else [f"if {expressions.filter(having)}:", *_indented(output())]
            loop = [*begin, f"for {rows} in group:", *_indented(add or ["pass"]), *emit]
            body = ["groups = {}", *body, "for group in groups.values():", *_indented(loop)]
        elif found:
            begin, add = aggregate()
            body = [*begin, *self.loops(sources, where, expressions, add), *output()]
        else:
            body = self.loops(sources, where, expressions, output())
        body = (
            ["out = []", *body, *self._finish(node, order, expressions)]
            if wants != "exists"
            else [*body, "return False"]
        )
        outer = list(scope.outer_used)
        return self.write(outer, body), outer

    def _finish(self, node: exp.Select, order: list[tuple[exp.Expr, bool]], expressions: Expressions) -> Lines:
        lines = [
            f"out.sort(key=lambda one: one[0][{place}], reverse={is_descending})"
            for place, (_, is_descending) in reversed(list(enumerate(order)))
        ]
        lines = ["if len(out) > 1:", *_indented(lines), "out = [one[1] for one in out]"] if order else []
        if node.args.get("distinct"):
            lines.append("out = list(dict.fromkeys(out))")
        limit, offset = limit_of(node, expressions)
        if limit != "None":
            lines.append(f"if {limit} is not None: out = out[{offset} or 0:({offset} or 0) + {limit}]")
        return [*lines, "return out"]

    def sort_key(self, value: tuple[str, bool]) -> str:
        """NULL comes last on Postgres, and first on SQLite."""
        source, nullable = value
        if not nullable:
            return source
        return f"({source} is {'' if self.tables.kind == 'postgres' else 'not '}None, {source})"

    def outputs(self, node: exp.Select, scope: Scope) -> list[exp.Expr]:
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

    def subquery(self, node: exp.Expr, scope: Scope) -> tuple[str, bool]:
        query = node.args["query"].this if isinstance(node, exp.In) else node.this
        wants = "exists" if isinstance(node, exp.Exists) else "rows"
        name, outer = self.select(query, Scope(scope), wants)
        call = f"{name}({', '.join(('s', 'p', 'x', *outer))})"
        if isinstance(node, exp.Exists):
            return call, False
        if isinstance(node, exp.In):
            return f"[one for one, in {call}]", False
        return f"next((one for one, in {call}), None)", True

    def sources(self, node: exp.Expr, scope: Scope) -> list[TableSource]:
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
        return [self.source(one, scope, on) for one, on in nodes]

    def source(self, node: exp.Expr, scope: Scope, on: list[exp.Expr] | None = None) -> TableSource:
        source = TableSource(next(self._numbers), node, on)
        is_optional = on is not None
        if isinstance(node, exp.Unnest):
            names = [one.name for one in node.args["alias"].columns] if node.args.get("alias") else []
            names = names or [f"column{number}" for number in range(len(node.expressions))]
            columns = SourceColumns(source.row, dict.fromkeys(names, True), is_optional=is_optional)
        elif isinstance(node, exp.Table) and node.name in self.parts:
            columns = SourceColumns(source.row, dict.fromkeys(self.parts[node.name], True), is_optional=is_optional)
        elif isinstance(node, exp.Table) and node.name in self.tables.tables:
            source.layout = self.tables.tables[node.name]
            columns = source.layout.source(source.row, is_optional=is_optional)
        else:
            raise NotImplementedError(f"not in the subset: {node.sql('postgres')}")
        scope.sources[source.alias] = columns
        return source

    def loops(self, sources: list[TableSource], where: list[exp.Expr], expressions: Expressions, body: Lines) -> Lines:
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


def _accumulate(variable: str, node: exp.Expr, expressions: Expressions) -> Lines:
    if isinstance(node, exp.Count):
        if isinstance(node.this, exp.Star):
            return [f"{variable} += 1"]
        return [f"if {expressions.value(node.this)[0]} is not None: {variable} += 1"]
    source, _ = expressions.value(node.this)
    combined = f"{variable} + n" if isinstance(node, exp.Sum) else f"{node.key}({variable}, n)"
    return [f"if (n := {source}) is not None: {variable} = n if {variable} is None else {combined}"]


def limit_of(node: exp.Select, expressions: Expressions) -> tuple[str, str]:
    limit, offset = node.args.get("limit"), node.args.get("offset")
    return (
        expressions.value(limit.expression)[0] if limit is not None else "None",
        expressions.value(offset.expression)[0] if offset is not None else "0",
    )


def listed(node: exp.Expr, name: str) -> list[exp.Expr]:
    found = node.args.get(name)
    return list(found.expressions) if found is not None else []


def _indented(lines: Lines, width: int = len(INDENT)) -> Lines:
    return [" " * width + line for line in lines]
