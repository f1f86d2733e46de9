"""Where names are looked up: tables, columns, aliases, and MySQL's errors about them."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from sqlglot import exp

from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Misplaced, Mistake
from agentpeft.envs.db_bench.backends.sqlite.mysql.parse.reserved import RESERVED_WORDS
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import (
    INTERNAL,
    Schema,
    SqlType,
    quote_name,
)

_NO_NAME = re.compile("[^\0-\uffff]")
"""What a text may hold and a name may not; MySQL shows it as a question mark."""


class Fragment(NamedTuple):
    """A piece of SQLite SQL and its type.

    `is_collated`: comparisons with it ignore case by themselves. `literal`: its text, if it is one.
    """

    sql: str
    type: SqlType
    is_collated: bool = False
    literal: str | None = None


class OutputColumn(NamedTuple):
    """A column of a table or of a query's result."""

    name: str
    type: SqlType
    is_collated: bool = True


@dataclass
class Query:
    """A translated query. `is_single_row`: it cannot have two rows."""

    sql: str
    columns: list[OutputColumn]
    is_single_row: bool = False
    is_limited: bool = False

    @property
    def types(self) -> tuple[SqlType, ...]:
        """The types of the result's columns."""
        return tuple(column.type for column in self.columns)


NEW_ROW = f"{INTERNAL}new"
"""The table that VALUES(column) reads in ON DUPLICATE KEY UPDATE."""
INNER = quote_name(f"{INTERNAL}q")
"""A common table expression of ours; within its own query the name is another one's or none."""


def with_names(sql: str, names: Iterable[str]) -> str:
    """Returns a table expression: a query whose columns have these names."""
    listed = ", ".join(map(quote_name, names))
    return f"(WITH {INNER}({listed}) AS ({sql}) SELECT * FROM {INNER})"


class Source:
    """One table of a FROM clause under its alias."""

    def __init__(
        self,
        alias: str,
        columns: Iterable[OutputColumn],
        keys: Iterable[tuple[str, ...]] = (),
        database: str = "",
        is_hidden: bool = False,
    ) -> None:
        """`keys` determine all other columns; `database` is set for a table of the schema.

        `is_hidden`: only names with its alias before them reach it.
        """
        self.is_hidden = is_hidden
        self.alias = alias
        self.columns = list(columns)
        self.keys = [tuple(name.lower() for name in key) for key in keys]
        self.title = f"{database}.{alias}" if database else alias
        self.fragments = {
            name.lower(): Fragment(f"{quote_name(alias)}.{quote_name(name)}", kind, is_collated)
            for name, kind, is_collated in self.columns
        }


class BareColumn(NamedTuple):
    """A column that was used outside every aggregate."""

    source: Source
    name: str

    @property
    def title(self) -> str:
        """How MySQL names it in an error."""
        return f"{self.source.title}.{self.name}"


@dataclass
class StatementState:
    """What one statement's scopes share: the schema, and what translation finds out.

    `target` is the table that an UPDATE or DELETE changes; its subqueries may not read it.
    `has_quotes`: the text has a quote of some kind, so that a name may be quoted.
    """

    schema: Schema
    compile_query: "Callable[[exp.Expr, Scope, bool], Query]"
    is_replace: bool = False
    target: str | None = None
    has_quotes: bool = True


@dataclass
class Scope:
    """One query block: its tables, its aliases, and the block around it (`parent`).

    A name is looked up from the innermost block outwards. What the fields say while the block is
    compiled, clause by clause:

    * `clause`: the one being compiled, as MySQL's errors name it.
    * `visible_from`: an ON clause sees only the sources since the last comma.
    * `using`: a column that USING or NATURAL joins, by name; it is ambiguous no more.
    * `aliases`: the select list's, by name. `select_list`: names that stand for other expressions
      now (the select list in HAVING, columns set before in UPDATE).
    * `bare`: columns used outside aggregates since the list was last cleared. ONLY_FULL_GROUP_BY
      judges them when the groups (`group_sql`: the GROUP BY expressions) are known.
    * `num_aggregates`, `aggregates_allowed`, `windows_allowed`: some clauses have none.
    * `is_derived`: the result is kept as a table, with names and rounded decimals.
    """

    statement: StatementState
    parent: "Scope | None" = None
    sources: list[Source] = field(default_factory=list)
    ctes: dict[str, list[OutputColumn]] = field(default_factory=dict)
    using: dict[str, Fragment] = field(default_factory=dict)
    aliases: dict[str, exp.Expr] = field(default_factory=dict)
    windows: set[str] = field(default_factory=set)
    clause: str = "field list"
    visible_from: int = 0
    bare: list[BareColumn] = field(default_factory=list)
    group_sql: set[str] = field(default_factory=set)
    num_aggregates: int = 0
    aggregates_allowed: bool = False
    windows_allowed: bool = False
    is_derived: bool = False
    select_list: dict[str, Fragment] = field(default_factory=dict)

    def add(self, source: Source) -> None:
        """Adds a source. Raises: MySQLError (1066)."""
        if any(other.alias == source.alias for other in self.sources):
            raise Mistake.NOT_UNIQUE_TABLE(source.alias)
        self.sources.append(source)

    def _outwards(self) -> Iterator["Scope"]:
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.parent

    def find_cte(self, name: str) -> list[OutputColumn] | None:
        """Returns the columns of a common table expression, None where there is none."""
        found = (scope.ctes.get(name.lower()) for scope in self._outwards())
        return next((columns for columns in found if columns is not None), None)

    def find_column(self, name: str, table: str) -> Fragment:
        """Returns a column of this block or one around it. Raises: MySQLError (1052, 1054)."""
        for scope in self._outwards():
            found = scope._find_own(name.lower(), table, self.clause)
            if found is not None:
                return found
        is_written = table not in ("", NEW_ROW)
        raise Mistake.UNKNOWN_COLUMN(f"{table}.{name}" if is_written else name, self.clause)

    def has_column(self, name: str) -> bool:
        """Returns whether an unqualified name is a column of this block's sources."""
        return any(name.lower() in source.fragments for source in self.sources)

    def _find_own(self, name: str, table: str, clause: str) -> Fragment | None:
        if not table and name in self.select_list:
            return self.select_list[name]
        matches = [
            source
            for source in self.sources[self.visible_from :]
            if name in source.fragments
            and (source.alias == table if table else not source.is_hidden)
        ]
        if not matches:
            return None
        if not table and name in self.using:
            self.bare.append(BareColumn(matches[0], name))
            return self.using[name]
        if len(matches) > 1:
            raise Mistake.AMBIGUOUS(name, clause)
        source = matches[0]
        written = next(column.name for column in source.columns if column.name.lower() == name)
        self.bare.append(BareColumn(source, written))
        return source.fragments[name]


def name_of(node: exp.Expr | None, *, is_qualified: bool = False) -> str:
    """Returns an identifier's name, "" for none.

    What no name of MySQL can hold is `?` in it, as a text may have that is given as an alias: so
    none is like the dialect's own names. Raises: Misplaced for a reserved word, which only a name
    before it and a dot allow.
    """
    if node is None:
        return ""
    name = node.name
    if (
        name.upper() in RESERVED_WORDS
        and isinstance(node, exp.Identifier)
        and not (is_qualified or node.args.get("quoted"))
    ):
        raise Misplaced(name, node.meta.get("start"))
    return replace_unnamable(name)


def replace_unnamable(name: str) -> str:
    """Returns a name with `?` for the characters above U+FFFF, as the server shows it."""
    return name if name.isascii() else _NO_NAME.sub("?", name)
