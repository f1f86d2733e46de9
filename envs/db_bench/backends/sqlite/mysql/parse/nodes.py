"""The closed world of syntax: which nodes of sqlglot's tree are read, and which of their arguments.

What is not named here is refused, so that nothing that a later version of sqlglot reads, or that a
compiler overlooks, runs with less meaning than it was written with.
"""

import re
from collections.abc import Callable

from sqlglot import exp

from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Misplaced, Mistake

_OPERATORS = (
    exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.And, exp.Or, exp.EQ, exp.NEQ,
    exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ, exp.Is, exp.Escape, exp.RegexpLike,
)  # fmt: skip
_SET_OPERATIONS = (exp.Union, exp.Intersect, exp.Except)
_OF_ONE = (
    exp.From, exp.Where, exp.Having, exp.Not, exp.Neg, exp.Paren, exp.Exists, exp.Any, exp.All,
    exp.Var, exp.Null, exp.Boolean, exp.DataTypeParam, exp.Ceil, exp.Floor, exp.CurrentDate,
    exp.CurrentTimestamp, exp.Use, exp.Describe, exp.EngineProperty,
    exp.CharacterSetProperty, exp.DefaultColumnConstraint, exp.PrimaryKeyColumnConstraint,
)  # fmt: skip
_OF_MANY = (exp.Group, exp.Order, exp.Tuple, exp.Distinct, exp.Concat, exp.Values, exp.Set,
            exp.TruncateTable, exp.Properties)  # fmt: skip
_SILENT = frozenset({"comments", "_type", "big_int", "coalesce", "typed", "safe"})
"""Arguments that sqlglot sets of itself."""
_ARGUMENTS: dict[type[exp.Expr], frozenset[str]] = {
    **dict.fromkeys(_OPERATORS, frozenset({"this", "expression"})),
    **dict.fromkeys(
        _SET_OPERATIONS,
        frozenset({"this", "expression", "distinct", "with_", "order", "limit", "offset"}),
    ),
    **dict.fromkeys(_OF_ONE, frozenset({"this"})),
    **dict.fromkeys(_OF_MANY, frozenset({"expressions"})),
    **{
        kind: frozenset(names.split())
        for kind, names in (
            (exp.Select, "expressions from_ joins where group having order limit offset distinct "
             "with_"),
            (exp.Subquery, "this alias order limit offset"),
            (exp.With, "expressions recursive"),
            (exp.CTE, "this alias"),
            (exp.TableAlias, "this columns"),
            (exp.Table, "this db alias joins"),
            (exp.Join, "this on side kind"),
            (exp.Column, "this table db"),
            (exp.Star, ""),
            (exp.Identifier, "this quoted"),
            (exp.Alias, "this alias"),
            (exp.Literal, "this is_string"),
            (exp.Ordered, "this desc nulls_first"),
            (exp.Limit, "expression offset"),
            (exp.Offset, "expression"),
            (exp.Anonymous, "this expressions"),
            (exp.In, "this expressions query"),
            (exp.Between, "this low high"),
            (exp.Like, "this expression negate"),
            (exp.Case, "this ifs default"),
            (exp.If, "this true false"),
            (exp.Cast, "this to"),
            (exp.DataType, "this expressions"),
            (exp.Interval, "this unit"),
            (exp.Window, "this partition_by order over"),
            (exp.Trim, "this expression position"),
            (exp.Substring, "this start length"),
            (exp.Extract, "this expression"),
            (exp.StrPosition, "this substr"),
            (exp.Insert, "this expression"),
            (exp.Schema, "this expressions"),
            (exp.Update, "this expressions where order limit"),
            (exp.Delete, "this where order limit tables"),
            (exp.Create, "this kind exists properties"),
            (exp.ColumnDef, "this kind constraints"),
            (exp.ColumnConstraint, "kind"),
            (exp.PrimaryKey, "expressions include"),
            (exp.IndexParameters, ""),
            (exp.NotNullColumnConstraint, "allow_null"),
            (exp.UniqueColumnConstraint, "this"),
            (exp.Drop, "tables kind exists"),
            (exp.Show, "this target like full"),
            (exp.SetItem, "this kind"),
            (exp.Transaction, "modes"),
            (exp.Commit, ""),
            (exp.Rollback, ""),
        )
    },
}  # fmt: skip
_KNOWN = {kind: names | _SILENT for kind, names in _ARGUMENTS.items()}
_FOREIGN = {
    "on": "ON",
    "except_": "EXCEPT",
    "limit_options": "PERCENT",
    "alternative": "OR",
    "symmetric": "SYMMETRIC",
    "all": "ALL",
    "from_": "FROM",
}
"""Arguments that MySQL's grammar lacks, with the word that is misplaced."""
_FOREIGN_NODES = (
    exp.ILike, exp.SimilarTo, exp.Glob, exp.Bracket, exp.Lambda, exp.Kwarg, exp.Filter,
    exp.GroupingSets, exp.Cube, exp.WithinGroup,
)  # fmt: skip


class Disguise(str):
    """The text of a token while it must not be a name that sqlglot knows; `written` is its own."""

    __slots__ = ("written",)
    written: str


def check_nodes(tree: exp.Expr) -> None:
    """Checks a tree, and puts what was written in the place of each disguise.

    Raises: MySQLError (1235) for a node or an argument that is not known; Misplaced (1064).
    """
    nodes = [tree]
    while nodes:
        node = nodes.pop()
        known = _KNOWN.get(type(node)) or _refuse(node)
        place = _PLACES.get(type(node))
        if place is not None and not place(node, tree):  # where only sqlglot reads one
            raise Misplaced(node.alias or node.name)
        for name, value in node.args.items():
            if not value:
                continue
            if name not in known:
                _refuse_argument(node, name)
            if isinstance(value, list):
                nodes += [item for item in value if isinstance(item, exp.Expr)]
            elif isinstance(value, exp.Expr) and name != "_type":
                nodes.append(value)
            elif isinstance(value, Disguise):
                node.args[name] = value.written


_PLACES: dict[type[exp.Expr], Callable[[exp.Expr, exp.Expr], bool]] = {
    exp.Alias: lambda node, _: isinstance(node.parent, exp.Select),  # no `VALUES (1 AS a)`
    exp.ColumnDef: lambda _, tree: bool(tree.args.get("kind")),  # no `INSERT INTO t (a AS b)`
    exp.Select: lambda node, _: not node.args.get("joins") or bool(node.args.get("from_")),
    exp.DataTypeParam: lambda node, _: isinstance(node.this, exp.Literal) and node.this.is_int,
    exp.Table: lambda node, _: isinstance(node.this, exp.Identifier),  # no `FROM t (a)`
}


def _refuse(node: exp.Expr) -> frozenset[str]:
    """Raises: MySQLError for a node that is not known."""
    if isinstance(node, _FOREIGN_NODES):
        raise Misplaced(node.name)
    if isinstance(node, exp.Dot) and isinstance(node.expression, exp.Anonymous):
        raise Mistake.FUNCTION_DENIED(f"{node.this.name}.{node.expression.name}")
    raise Mistake.NOT_SUPPORTED(_title(node))


def _refuse_argument(node: exp.Expr, name: str) -> None:
    """Raises: Misplaced, MySQLError for an argument that is not known."""
    if name in _FOREIGN:
        raise Misplaced(_FOREIGN[name])
    raise Mistake.NOT_SUPPORTED(f"{_title(node)} {name.strip('_').upper()}")


def _title(node: exp.Expr) -> str:
    """Returns what a node is called in an error: AutoIncrementColumnConstraint, AUTO INCREMENT."""
    name = type(node).__name__.removesuffix("ColumnConstraint").removesuffix("Property")
    return re.sub("(?<=[a-z])(?=[A-Z])", " ", name).upper()
