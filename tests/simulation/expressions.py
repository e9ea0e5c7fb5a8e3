"""SQL expressions as Python source. NULL is None, and logic has three values where an operand can be NULL.

The source reads the rows of a query from local variables (r0, r1, …), which are tuples, and the values of its
placeholders from the tuple `p`. A row that an outer join did not find is None.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sqlglot import exp

COMPARISONS: dict[type[exp.Expr], str] = {
    exp.EQ: "==",
    exp.NEQ: "!=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "//",  # of integers, none of them negative
    exp.DPipe: "+",  # of texts
}
AGGREGATES = (exp.Sum, exp.Count, exp.Max, exp.Min)


class SourceColumns:
    """A table of a query: the variable that has its row, and its columns by name, with whether they can be NULL."""

    def __init__(self, variable: str, columns: Mapping[str, bool], *, is_optional: bool = False) -> None:
        self.variable = variable
        self.is_optional = is_optional
        self._places = {name: place for place, name in enumerate(columns)}
        self._nullable = columns

    def __contains__(self, column: str) -> bool:
        return column in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def read(self, column: str) -> tuple[str, bool]:
        """The source of a column's value, and whether it can be NULL."""
        source = f"{self.variable}[{self._places[column]}]"
        if self.is_optional:
            return f"({self.variable} and {source})", True
        return source, self._nullable[column]


class Scope:
    """The tables that an expression can name, by alias. Those of `outer` are tried last, and noted in `outer_used`."""

    def __init__(self, outer: "Scope | None" = None) -> None:
        self.sources: dict[str, SourceColumns] = {}
        self.outer = outer
        self.outer_used: dict[str, None] = {}

    def find(self, column: exp.Column) -> SourceColumns:
        for alias, source in self.sources.items():
            if column.table == alias or (not column.table and column.name in source):
                return source
        if self.outer is None:
            raise NotImplementedError(f"a column of no table: {column}")
        found = self.outer.find(column)
        self.outer_used[found.variable] = None
        return found


class Expressions:
    """Writes the expressions of one query. `subquery` writes a query inside of it: the source of its value."""

    def __init__(self, scope: Scope, subquery: Callable[[exp.Expr, Scope], tuple[str, bool]]) -> None:
        self.scope = scope
        self._subquery = subquery
        self.aggregates: dict[exp.Expr, str] = {}  # the variables of those that are computed already

    def filter(self, node: exp.Expr) -> str:
        """Source that is true in the Python sense if the condition holds: NULL counts as false."""
        if isinstance(node, exp.Paren):
            return self.filter(node.this)
        if isinstance(node, exp.And | exp.Or):
            word = "and" if isinstance(node, exp.And) else "or"
            return f"({self.filter(node.this)} {word} {self.filter(node.expression)})"
        return self.value(node)[0]

    def value(self, node: exp.Expr) -> tuple[str, bool]:  # noqa: PLR0911, PLR0912, C901 a table of cases
        """The source of a value, and whether it can be NULL."""
        match node:
            case exp.Column():
                return self.scope.find(node).read(node.name)
            case exp.Parameter():
                return f"p[{int(node.name) - 1}]", True
            case exp.Cast() | exp.Paren() | exp.Alias():
                return self.value(node.this)
            case exp.Literal():
                return (repr(node.this) if node.is_string else node.this), False
            case exp.Null():
                return "None", True
            case exp.Boolean():
                return repr(bool(node.this)), False
            case exp.Any():
                return self.value(node.this)
            case exp.EQ(expression=exp.Any()):
                return self._operation("in", node.this, node.expression)
            case exp.And() | exp.Or():
                return self._logic(node)
            case exp.Not():
                source, nullable = self.value(node.this)
                return (f"(None if {source} is None else not {source})" if nullable else f"(not {source})"), nullable
            case exp.Is():
                word = "is not" if node.args.get("negate") else "is"
                return f"({self.value(node.this)[0]} {word} {self.value(node.expression)[0]})", False
            case exp.Between():
                low = exp.GTE(this=node.this.copy(), expression=node.args["low"].copy())
                high = exp.LTE(this=node.this.copy(), expression=node.args["high"].copy())
                return self.value(exp.And(this=low, expression=high))
            case exp.In() if node.args.get("query") is None:
                source, nullable = self.value(node.this)
                among = f"({', '.join(self.value(one)[0] for one in node.expressions)},)"
                return (
                    f"(None if {source} is None else {source} in {among})" if nullable else f"({source} in {among})"
                ), nullable
            case exp.In():
                return f"({self.value(node.this)[0]} in {self._subquery(node, self.scope)[0]})", False
            case exp.Coalesce():
                parts = [self.value(one) for one in (node.this, *node.expressions)]
                return f"coalesce({', '.join(source for source, _ in parts)})", all(nullable for _, nullable in parts)
            case exp.Case():
                return self._case(node)
            case exp.Length() | exp.Lower():
                name = "len" if isinstance(node, exp.Length) else "str.lower"
                source, nullable = self.value(node.this)
                return (
                    f"(None if {source} is None else {name}({source}))" if nullable else f"{name}({source})"
                ), nullable
            case exp.Neg():
                source, nullable = self.value(node.this)
                return (f"(None if {source} is None else -{source})" if nullable else f"(-{source})"), nullable
            case exp.Exists() | exp.Subquery():
                return self._subquery(node, self.scope)
            case exp.Sum() | exp.Count() | exp.Max() | exp.Min() if node in self.aggregates:
                return self.aggregates[node], not isinstance(node, exp.Count)
            case _ if type(node) in COMPARISONS:
                return self._operation(COMPARISONS[type(node)], node.this, node.expression)
        raise NotImplementedError(f"not in the subset: {node.sql('postgres')}")

    def _operation(self, operator: str, *operands: exp.Expr) -> tuple[str, bool]:
        (left, left_nullable), (right, right_nullable) = map(self.value, operands)
        nulls = [
            f"{source} is None" for source, nullable in ((left, left_nullable), (right, right_nullable)) if nullable
        ]
        operation = f"{left} {operator} {right}"
        return (f"(None if {' or '.join(nulls)} else {operation})" if nulls else f"({operation})"), bool(nulls)

    def _logic(self, node: exp.And | exp.Or) -> tuple[str, bool]:
        (left, left_nullable), (right, right_nullable) = self.value(node.this), self.value(node.expression)
        word = "and" if isinstance(node, exp.And) else "or"
        if left_nullable or right_nullable:
            return f"{word}_({left}, {right})", True
        return f"({left} {word} {right})", False

    def _case(self, node: exp.Case) -> tuple[str, bool]:
        if node.this is not None:
            raise NotImplementedError(f"not in the subset: {node.sql('postgres')}")
        default = node.args.get("default")
        source = self.value(default)[0] if default is not None else "None"
        for branch in reversed(node.args["ifs"]):
            source = f"({self.value(branch.args['true'])[0]} if {self.filter(branch.this)} else {source})"
        return source, True


def coalesce(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def and_(left: Any, right: Any) -> bool | None:
    if left is None or right is None:
        is_false = (left is not None and not left) or (right is not None and not right)
        return False if is_false else None
    return bool(left and right)


def or_(left: Any, right: Any) -> bool | None:
    if left is None or right is None:
        return True if left or right else None
    return bool(left or right)


HELPERS = {"coalesce": coalesce, "and_": and_, "or_": or_}


def conjuncts(node: exp.Expr | None) -> list[exp.Expr]:
    """The parts of a condition that must all hold."""
    if node is None:
        return []
    if isinstance(node, exp.Paren):
        return conjuncts(node.this)
    if isinstance(node, exp.And):
        return [*conjuncts(node.this), *conjuncts(node.expression)]
    return [node]


def no_subquery(node: exp.Expr, _: Scope) -> tuple[str, bool]:
    raise NotImplementedError(f"a query in a constraint: {node.sql('postgres')}")
