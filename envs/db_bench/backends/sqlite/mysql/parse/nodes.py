"""The syntax tree: what a statement of this dialect may consist of, and nothing else."""

from typing import NamedTuple, TypeAlias


class Constant(NamedTuple):
    """A literal; `kind`: "number", "text", "boolean" or "null"."""

    text: str
    kind: str


class ColumnName(NamedTuple):
    """A column's name, as it is written."""

    name: str
    table: str = ""
    database: str = ""


class Star(NamedTuple):
    """`*` in a select list or in COUNT(*), or `table.*`."""

    table: str = ""


class Ordered(NamedTuple):
    """A term of ORDER BY."""

    term: "Expression"
    is_descending: bool


class Window(NamedTuple):
    """What stands between the parentheses of OVER."""

    partition: tuple["Expression", ...]
    order: tuple[Ordered, ...]


class Call(NamedTuple):
    """A function call."""

    name: str
    arguments: tuple["Expression", ...]
    is_distinct: bool = False
    window: Window | None = None


class Operator(NamedTuple):
    """An operator over its operands: "NOT LIKE", "IN" (a value, then the list)."""

    operator: str
    operands: tuple["Expression", ...]


class Case(NamedTuple):
    """CASE; `branches`: (condition or value, result)."""

    operand: "Expression | None"
    branches: tuple[tuple["Expression", "Expression"], ...]
    default: "Expression"


class Cast(NamedTuple):
    """CAST."""

    value: "Expression"
    type_name: str
    sizes: tuple[int, ...]


Expression: TypeAlias = "Constant | ColumnName | Star | Call | Operator | Case | Cast | Query"
"""A query is one as a value, and behind IN or EXISTS."""


class Item(NamedTuple):
    """An expression of a select list; `name`: its alias, or the text as it is written."""

    value: Expression
    name: str
    is_alias: bool


class TableName(NamedTuple):
    """A table's name, and its alias."""

    name: str
    database: str
    alias: str


class Derived(NamedTuple):
    """A query in FROM; `is_common`: the name of one that WITH gives stands there."""

    query: "Query"
    alias: str
    is_common: bool = False


class Join(NamedTuple):
    """A source of FROM; `side`: how it is joined to those before it: "", ",", LEFT or RIGHT."""

    source: TableName | Derived
    side: str
    condition: "Expression | None"


class Select(NamedTuple):
    """One query block, without what follows it."""

    items: tuple[Item, ...]
    sources: tuple[Join, ...]
    where: "Expression | None"
    group: tuple[Expression, ...]
    having: "Expression | None"
    is_distinct: bool


class Union(NamedTuple):
    """Two queries; `operator`: UNION, INTERSECT or EXCEPT."""

    left: "Query"
    right: "Query"
    is_all: bool
    operator: str


class Tail(NamedTuple):
    """What may follow a query or a change. `limit`: (count, offset)."""

    order: tuple[Ordered, ...] = ()
    limit: tuple[int, int] | None = None


class Query(NamedTuple):
    """A query."""

    body: Select | Union
    tail: Tail = Tail()


class Insert(NamedTuple):
    """INSERT of rows or a query; `columns` is None where no names are given."""

    table: TableName
    columns: tuple[str, ...] | None
    source: tuple[tuple[Expression, ...], ...] | Query


Assignments: TypeAlias = tuple[tuple[ColumnName, Expression], ...]


class Change(NamedTuple):
    """UPDATE of a table, or DELETE, without assignments."""

    table: TableName
    assignments: Assignments
    where: "Expression | None"
    tail: Tail


class Create(NamedTuple):
    """CREATE TABLE; `columns`: names and types, as they are written."""

    table: TableName
    columns: tuple[tuple[str, str], ...]
    if_not_exists: bool


class PlainStatement(NamedTuple):
    """Another statement: "DROP", "DROP IF EXISTS", "DESCRIBE", "SHOW TABLES", "COMMIT"."""

    words: str
    tables: tuple[TableName, ...] = ()


Node: TypeAlias = Query | Insert | Change | Create | PlainStatement
