"""Where names are looked up: tables, columns, aliases, and MySQL's errors about them."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from sqlglot import exp

from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Misplaced, Mistake
from agentpeft.envs.db_bench.backends.sqlite.mysql.parse.words import RESERVED_WORDS
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import Schema, SqlType, quote_name

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


class Source:
    """One table of a FROM clause under its alias."""

    def __init__(
        self,
        alias: str,
        columns: Iterable[OutputColumn],
        keys: Iterable[tuple[str, ...]] = (),
        database: str = "",
    ) -> None:
        """`keys` determine all other columns; `database` is set for a table of the schema."""
        self.alias = alias
        self.database = database
        self.columns = list(columns)
        self.keys = [tuple(name.lower() for name in key) for key in keys]
        self.title = f"{database}.{alias}" if database else alias
        self.written = {column.name.lower(): column.name for column in self.columns}
        self.fragments = {
            name.lower(): Fragment(f"{quote_name(alias)}.{quote_name(name)}", kind, is_collated)
            for name, kind, is_collated in self.columns
        }


class BareColumn(NamedTuple):
    """A column that was used outside every aggregate; `title`: how MySQL's errors name it."""

    sql: str
    name: str
    source: Source

    @property
    def title(self) -> str:
        """How MySQL names it in an error."""
        return f"{self.source.title}.{self.name}"


@dataclass
class Scope:
    """One query block: its tables, its aliases, and the block around it (`parent`).

    A name is looked up from the innermost block outwards. What the fields say while the block is
    compiled, clause by clause:

    * `clause`: the one being compiled, as MySQL's errors name it.
    * `visible_from`: an ON clause sees only the sources since the last comma.
    * `aliases`: the select list's, by name. `select_list`: names that stand for other expressions
      now (the select list in HAVING, columns set before in UPDATE).
    * `bare`: columns used outside aggregates since the list was last cleared. ONLY_FULL_GROUP_BY
      judges them when the groups (`group_sql`: the GROUP BY expressions) are known.
    * `num_uses`: how often its columns were used.
    * `is_grouped`: there is a GROUP BY, so that arguments of aggregates are kept in a table.
    * `num_aggregates`, `aggregates_allowed`, `windows_allowed`: some clauses have none.
    * `is_derived`: the result is kept as a table, with names and rounded decimals.
    * `target`: the table that an UPDATE or DELETE changes; its subqueries may not read it.
    """

    schema: Schema
    parent: "Scope | None" = None
    target: str | None = None
    is_derived: bool = False
    sources: list[Source] = field(default_factory=list)
    ctes: dict[str, list[OutputColumn]] = field(default_factory=dict)
    aliases: dict[str, exp.Expr] = field(default_factory=dict)
    clause: str = "field list"
    visible_from: int = 0
    bare: list[BareColumn] = field(default_factory=list)
    group_sql: set[str] = field(default_factory=set)
    is_grouped: bool = False
    num_uses: int = 0
    num_aggregates: int = 0
    aggregates_allowed: bool = False
    windows_allowed: bool = False
    select_list: dict[str, Fragment] = field(default_factory=dict)

    def make_inner(self, *, is_derived: bool = False) -> "Scope":
        """Returns the scope of a query within this one."""
        return Scope(self.schema, self, self.target, is_derived)

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
        for scope in self._outwards():
            if name.lower() in scope.ctes:
                return scope.ctes[name.lower()]
        return None

    def find_column(self, node: exp.Expr) -> Fragment:
        """Returns a column of this block or one around it. Raises: MySQLError (1052, 1054)."""
        table, database = name_of(node.args.get("table")), name_of(node.args.get("db"))
        name = name_of(node.this, is_qualified=bool(table))
        for scope in self._outwards():
            found = scope._find_own(name.lower(), table, database, self.clause)
            if found is not None:
                return found
        written = ".".join(filter(None, (database, table, name)))
        raise Mistake.UNKNOWN_COLUMN(written, self.clause)

    def has_column(self, name: str) -> bool:
        """Returns whether an unqualified name is a column of this block's sources."""
        return any(name.lower() in source.fragments for source in self.sources)

    def _find_own(self, name: str, table: str, database: str, clause: str) -> Fragment | None:
        if not table and name in self.select_list:
            return self.select_list[name]
        matches = [
            source
            for source in self.sources[self.visible_from :]
            if name in source.fragments
            and table in ("", source.alias)
            and database in ("", source.database)
        ]
        if not matches:
            return None
        if len(matches) > 1:
            raise Mistake.AMBIGUOUS(name, clause)
        self.use(matches[0], name)
        return matches[0].fragments[name]

    def use(self, source: Source, name: str) -> None:
        """Notes that a column is used; `name` is in lower case."""
        self.num_uses += 1
        self.bare.append(BareColumn(source.fragments[name].sql, source.written[name], source))


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
