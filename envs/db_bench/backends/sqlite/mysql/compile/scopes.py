"""Where names are looked up: tables, columns, aliases, and MySQL's errors about them."""

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Mistake
from agentpeft.envs.db_bench.backends.sqlite.mysql.parse import nodes
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import Schema, SqlType, quote_name


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


class CompiledQuery(NamedTuple):
    """A translated query. `is_single_row`: it cannot have two."""

    sql: str
    columns: list[OutputColumn]
    is_single_row: bool = False


class BareColumn(NamedTuple):
    """A column that was used outside every aggregate. `title`: its name in an error."""

    sql: str
    name: str
    title: str


Pair: TypeAlias = tuple[str, str, bool]
"""The first of two columns (as SQL; a constant is "") determines the second one, or may do so."""


class Source:
    """One table of a FROM clause under its alias; in SQLite's SQL it is called `sql_name`."""

    def __init__(
        self, alias: str, sql_name: str, columns: Iterable[OutputColumn], database: str = ""
    ) -> None:
        """`database` is set for a table of the schema."""
        self.alias = alias
        self.database = database
        self.columns: dict[str, tuple[Fragment, BareColumn]] = {}
        title = f"{database}.{alias}" if database else alias
        for index, (name, kind, is_collated) in enumerate(columns):
            sql = f"{sql_name}.{quote_name(name) if database else f'c{index}'}"
            bare = BareColumn(sql, name, f"{title}.{name}")
            key = name.lower() if name.lower() not in self.columns else f"{index} {name}"
            self.columns[key] = (Fragment(sql, kind, is_collated), bare)


@dataclass
class Scope:
    """One query block: its tables, its aliases, and the block around it (`parent`).

    A name is looked up from the innermost block outwards. What the fields say while the block is
    compiled, clause by clause:

    * `target`: the table that an UPDATE or DELETE changes; its subqueries may not read it.
    * `is_derived`: the result is kept as a table, with names and rounded decimals.
    * `aliases`: the select list's, by name; `aggregated`: those of aggregates. `select_list`: names
      that stand for other expressions now (the select list in HAVING, columns set before in
      UPDATE). `refused`: names that MySQL would look up in a way of its own here.
    * `clause`: the one being compiled, as MySQL's errors name it.
    * `visible_from`: an ON clause sees only the sources since the last comma.
    * `bare`: columns used outside aggregates since the list was last cleared. ONLY_FULL_GROUP_BY
      judges them when the groups (`group_sql`: the GROUP BY expressions) and the columns that
      equalities (`pairs`) fix with these (`determined`) are known. HAVING takes
      the names of grouped columns (`group_names`) for these, not for aliases.
    * `num_uses`, `num_outer_uses`: how often columns of this block, or of those around, were used.
    * `is_grouped`: there is a GROUP BY, so that arguments of aggregates are kept in a table.
    * `num_aggregates`, `aggregates_allowed`: some clauses have none.
    """

    schema: Schema
    parent: "Scope | None" = None
    target: str | None = None
    is_derived: bool = False
    sources: list[Source] = field(default_factory=list)
    aliases: dict[str, nodes.Expression] = field(default_factory=dict)
    aggregated: set[str] = field(default_factory=set)
    select_list: dict[str, Fragment] = field(default_factory=dict)
    refused: Container[str] = ()
    clause: str = "field list"
    visible_from: int = 0
    bare: list[BareColumn] = field(default_factory=list)
    group_sql: set[str] = field(default_factory=set)
    group_names: set[str] = field(default_factory=set)
    pairs: list[Pair] = field(default_factory=list)
    determined: set[str] | None = None
    is_grouped: bool = False
    num_uses: int = 0
    num_outer_uses: int = 0
    num_aggregates: int = 0
    aggregates_allowed: bool = False

    def begin(self, clause: str, *, aggregates: bool = False) -> None:
        """Begins a clause, in which aggregates may stand."""
        self.clause, self.select_list = clause, {}
        self.aggregates_allowed = aggregates
        self.bare.clear()

    def add(self, source: Source) -> None:
        """Adds a source. Raises: MySQLError (1066)."""
        if any(other.alias == source.alias for other in self.sources):
            raise Mistake.NOT_UNIQUE_TABLE(source.alias)
        self.sources.append(source)

    def name_source(self) -> str:
        """Returns what the next source is called: no block around this one has that name.

        SQLite's aliases ignore case, and an inner one would hide an outer one of the same name.
        """
        return f"t{sum(1 for _ in self._outwards())}_{len(self.sources)}"

    def _outwards(self) -> Iterator["Scope"]:
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.parent

    def find_column(self, node: nodes.ColumnName) -> Fragment:
        """Returns a column of this block or one around it. Raises: MySQLError (1052, 1054)."""
        for scope in self._outwards():
            column = scope._find_own(node, self.clause)
            if column is not None:
                self.num_outer_uses += scope is not self
                return column
        if node.table and not any(scope.sources for scope in self._outwards()):
            raise Mistake.UNKNOWN_TABLE_IN(node.table, self.clause)
        for scope in self._outwards():
            if not node.table and node.name.lower() in scope.aliases and scope._shows_aliases(self):
                raise Mistake.NOT_SUPPORTED(f"the alias {node.name} here")
        raise Mistake.UNKNOWN_COLUMN(".".join(filter(None, reversed(node))), self.clause)

    def _shows_aliases(self, inner: "Scope") -> bool:
        """Returns whether MySQL looks up names of this block, or one in it, in the select list."""
        if inner is self:
            return self.clause == "group statement"
        return self.clause not in ("where clause", "on clause")

    def has_column(self, name: str) -> bool:
        """Returns whether an unqualified name is a column of this block's sources."""
        return any(name.lower() in source.columns for source in self.sources)

    def _find_own(self, node: nodes.ColumnName, clause: str) -> Fragment | None:
        name = node.name.lower()
        if name in self.refused:
            raise Mistake.NOT_SUPPORTED(f"the column {node.name} here")
        if name in self.select_list and self.clause == "field list" and node.table:
            raise Mistake.NOT_SUPPORTED(f"{node.name} after it was SET")  # which of its values?
        if not node.table and name in self.select_list:
            if name in self.aggregated and self.clause == "order clause":
                raise Mistake.REFERENCE(node.name)
            return self.select_list[name]
        matches = [
            source
            for source in self.sources[self.visible_from :]
            if name in source.columns
            and node.table in ("", source.alias)
            and node.database in ("", source.database)
        ]
        if not matches:
            return None
        if len(matches) > 1:
            raise Mistake.AMBIGUOUS(name, clause)
        self.num_uses += 1
        fragment, bare = matches[0].columns[name]
        if fragment.type.is_opaque:
            raise Mistake.NOT_SUPPORTED(f"the type of the column {node.name}")
        self.bare.append(bare)
        return fragment
