"""A parser of the part of MySQL's grammar that is done here, by recursive descent.

It reads no more than it knows, so that nothing runs with less meaning than it was written with. A
word that it cannot use is an error: 1235 if it is one of MySQL's (`words.REFUSED`), else 1064.
"""

import math
from collections.abc import Callable, Container
from typing import NoReturn, TypeVar

from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Mistake
from agentpeft.envs.db_bench.backends.sqlite.mysql.parse import nodes, words
from agentpeft.envs.db_bench.backends.sqlite.mysql.parse.nodes import Expression, Operator, Query
from agentpeft.envs.db_bench.backends.sqlite.mysql.parse.statements import Statement, Token
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import TYPE_NAMES

_MAX_NESTING = 60
_MAX_CHAIN = 60
"""Most operators, joins or UNIONs in a row, AND and OR apart (they do not nest)."""
_MAX_DIGITS = 81
_PREDICATE = 5
_SUM = 6
_PRODUCT = 7
_BINDING = {
    **dict.fromkeys(("OR", "||"), 1),
    **dict.fromkeys(("AND", "&&"), 2),
    "NOT": 3,
    **dict.fromkeys(("=", "<=>", "<>", "!=", "<", ">", "<=", ">=", "IS"), 4),
    **dict.fromkeys(("IN", "BETWEEN", "LIKE"), _PREDICATE),
    **dict.fromkeys(("+", "-"), _SUM),
    **dict.fromkeys(("*", "/", "%", "MOD"), _PRODUCT),
}
"""How strongly MySQL's operators bind."""
_SYNONYMS = {"||": "OR", "&&": "AND", "!=": "<>", "MOD": "%"}
_QUANTIFIED = {"= ANY": "IN", "= SOME": "IN", "<> ALL": "NOT IN"}
_PREDICATES = frozenset({"IN", "BETWEEN", "LIKE"})
_SET_OPERATIONS = frozenset({"UNION", "INTERSECT", "EXCEPT"})
_JOINS = frozenset({",", "JOIN", "INNER", "CROSS", "LEFT", "RIGHT"})
_QUERY_WORDS = frozenset({"SELECT", "WITH"})
_NULL = nodes.Constant("NULL", "null")
ItemT = TypeVar("ItemT")


def parse(statement: Statement) -> nodes.Node:
    """Returns the statement's syntax tree.

    Raises: MySQLError (1064 for what is no MySQL, 1235 for what is not done, 1436).
    """
    parser = _Parser(statement)
    node = parser.read_statement()
    if parser.token.kind != "end":
        parser.fail()
    return node


class _Parser:
    """Reads one statement; `token` is the next one."""

    def __init__(self, statement: Statement) -> None:
        self._statement = statement
        self._tokens = statement.tokens
        self._place = 0
        self._depth = 0
        self._common_tables: dict[str, Query] = {}
        self.token = self._tokens[0]

    def _advance(self) -> Token:
        token = self.token
        if token.kind != "end":
            self._place += 1
            self.token = self._tokens[self._place]
        return token

    def _peek(self, offset: int = 1) -> Token:
        return self._tokens[min(self._place + offset, len(self._tokens) - 1)]

    def _accept(self, *choices: str) -> str:
        """Reads one of these words or symbols; returns "" where another one stands."""
        upper = self.token.upper
        if upper not in choices:
            return ""
        self._advance()
        return upper

    def _expect(self, *choices: str) -> str:
        return self._accept(*choices) or self.fail()

    def _accept_all(self, *sequence: str) -> bool:
        """Reads all of these words, or none."""
        if any(self._peek(offset).upper != word for offset, word in enumerate(sequence)):
            return False
        for _ in sequence:
            self._advance()
        return True

    def _accept_by(self, word: str) -> str:
        return word if self._accept(word) and self._expect("BY") else ""

    def fail(self) -> NoReturn:
        """Raises: MySQLError about the next token."""
        token, followers = self.token, words.FOLLOWERS.get(self.token.upper, "")
        is_known = token.upper in words.REFUSED or token.kind == "foreign"
        if is_known and (not followers or self._peek().upper in followers):
            raise Mistake.NOT_SUPPORTED(token.text)
        raise self._statement.syntax_error(token.start)

    def _refuse(self, upper: Container[str], what: str = "") -> None:
        """Raises: MySQLError (1235) where one of these words is next."""
        if self.token.upper in upper:
            raise Mistake.NOT_SUPPORTED(what or self.token.text)

    def _read_list(self, read: Callable[[], ItemT]) -> tuple[ItemT, ...]:
        """Reads one or more, with commas between them."""
        items = [read()]
        while self._accept(","):
            items.append(read())
        return tuple(items)

    def _read_in_parentheses(self, read: Callable[[], ItemT]) -> tuple[ItemT, ...]:
        self._expect("(")
        items = self._read_list(read)
        self._expect(")")
        return items

    def _read_deeper(self, read: Callable[[], ItemT]) -> ItemT:
        """Reads what is nested. Raises: MySQLError (1436)."""
        self._depth += 1
        if self._depth > _MAX_NESTING:
            raise Mistake.STACK()
        item = read()
        self._depth -= 1
        return item

    def _is_name(self) -> bool:
        token = self.token
        return token.kind == "name" or (token.kind == "word" and token.upper not in words.RESERVED)

    def _name(self, *, may_be_reserved: bool = False) -> str:
        """Reads a name. Raises: MySQLError (1300) for characters that no name has."""
        token = self.token
        if not (self._is_name() or (may_be_reserved and token.kind == "word")):
            self.fail()
        if not token.text.isascii() and max(token.text) > "\uffff":
            written = str(token.text.encode())[2:-1].upper().replace("\\X", "\\x")
            raise Mistake.BAD_NAME(written)
        return self._advance().text

    def _table(self) -> nodes.TableName:
        name, database = self._name(), ""
        if self._accept("."):
            name, database = self._name(may_be_reserved=True), name
        return nodes.TableName(name, database, name)

    def _aliased_table(self) -> nodes.TableName:
        table = self._table()
        start = self.token.start
        if not (self._accept("AS") or self._is_name()):
            return table
        alias = self._name()
        if alias.upper() in words.FOREIGN_JOINS and self.token.upper == "JOIN":
            raise self._statement.syntax_error(start)
        return table._replace(alias=alias)

    def read_statement(self) -> nodes.Node:
        """Reads the whole statement."""
        first = self.token.upper
        self._refuse(words.REFUSED_STATEMENTS)
        if first == "(" or first in _QUERY_WORDS:
            return self._query()
        readers = {
            "INSERT": self._insert,
            "UPDATE": self._update,
            "DELETE": self._delete,
            "CREATE": self._create,
            "DROP": self._drop,
            "SHOW": self._show,
            "SET": self._set,
            "TRUNCATE": self._truncate,
            **dict.fromkeys(("DESCRIBE", "DESC"), self._describe),
            **dict.fromkeys(("BEGIN", "START", "COMMIT", "ROLLBACK"), self._transaction),
        }
        if first not in readers:
            raise self._statement.syntax_error(self.token.start)
        self._advance()
        return readers[first]()

    def _insert(self) -> nodes.Node:
        self._accept("INTO")
        table = self._table()
        columns: tuple[str, ...] | None = None
        if self.token.upper == "(" and self._peek().upper not in _QUERY_WORDS:
            if self._peek().upper == ")" or self._peek(2).upper == ".":
                raise Mistake.NOT_SUPPORTED("INSERT without columns, or of other tables' ones")
            columns = self._read_in_parentheses(self._name)
        self._refuse(("SET",), "INSERT … SET")
        source: tuple[tuple[Expression, ...], ...] | Query
        if self.token.upper == "(" or self.token.upper in _QUERY_WORDS:
            source = self._query()
        elif self._accept("VALUES", "VALUE"):
            source = self._read_list(lambda: self._read_in_parentheses(self._expression))
        else:
            raise self._statement.syntax_error(self.token.start)
        if self._peek().upper == "DUPLICATE" or self.token.upper == "AS":
            raise Mistake.NOT_SUPPORTED("ON DUPLICATE KEY UPDATE")
        return nodes.Insert(table, columns, source)

    def _update(self) -> nodes.Node:
        table = self._aliased_table()
        self._refuse(_JOINS, "UPDATE of joined tables")
        self._expect("SET")
        return self._change(table, self._read_list(self._assignment))

    def _assignment(self) -> tuple[nodes.ColumnName, Expression]:
        column = self._column()
        self._expect("=")
        if not isinstance(column, nodes.ColumnName):
            self.fail()
        return column, self._expression()

    def _delete(self) -> nodes.Node:
        if self.token.upper not in words.REFUSED | {"FROM"}:
            self._name()
            self._refuse(("FROM", ",", "."), "DELETE from joined tables")
        self._expect("FROM")
        table = self._aliased_table()
        self._refuse(_JOINS | {".", "USING"}, "DELETE from joined tables")
        return self._change(table, ())

    def _change(self, table: nodes.TableName, assignments: nodes.Assignments) -> nodes.Node:
        where = self._expression() if self._accept("WHERE") else None
        return nodes.Change(table, assignments, where, self._tail(is_change=True))

    def _create(self) -> nodes.Node:
        self._refuse(("OR",), "CREATE OR REPLACE")
        self._expect("TABLE")
        if_not_exists = self._accept_all("IF", "NOT", "EXISTS")
        table = self._table()
        self._refuse(words.DEFINITIONS | {"SELECT"}, "CREATE TABLE from another one")
        if self.token.kind == "end":
            raise Mistake.NO_COLUMNS()
        columns = self._read_in_parentheses(self._definition)
        return nodes.Create(table, columns, if_not_exists)

    def _definition(self) -> tuple[str, str]:
        """Reads a column's name and type."""
        self._refuse(words.DEFINITIONS)
        name = self._name()
        start = self.token.start
        self._refuse(words.OTHER_TYPES)
        if self.token.upper not in TYPE_NAMES:
            raise self._statement.syntax_error(start)
        self._advance()
        if self.token.upper == "(":
            self._read_in_parentheses(self._number)
        declared = self._text_since(start)
        self._refuse(words.DEFINITIONS)
        return name, declared

    def _drop(self) -> nodes.Node:
        self._expect("TABLE", "TABLES")
        command = "DROP IF EXISTS" if self._accept_all("IF", "EXISTS") else "DROP"
        tables = self._read_list(self._table)
        self._accept("CASCADE", "RESTRICT")  # MySQL's manual: they do nothing
        return nodes.PlainStatement(command, tables)

    def _show(self) -> nodes.Node:
        if not self._accept("TABLES") or self.token.kind != "end":
            raise Mistake.NOT_SUPPORTED(f"SHOW {self.token.text}")
        return nodes.PlainStatement("SHOW TABLES")

    def _set(self) -> nodes.Node:
        is_done = self._accept_all("AUTOCOMMIT", "=") and self.token.text in ("0", "1")
        if not is_done or self._peek().upper == ",":
            raise Mistake.NOT_SUPPORTED(f"SET {self.token.text}")
        return nodes.PlainStatement(f"AUTOCOMMIT {'ON' if self._advance().text == '1' else 'OFF'}")

    def _describe(self) -> nodes.Node:
        self._refuse(_QUERY_WORDS | {"INSERT", "UPDATE", "DELETE"}, "EXPLAIN")
        table = self._table()
        if self._is_name() or self.token.kind == "text":
            raise Mistake.NOT_SUPPORTED("DESCRIBE of one column")
        return nodes.PlainStatement("DESCRIBE", (table,))

    def _truncate(self) -> nodes.Node:
        self._accept("TABLE")
        return nodes.PlainStatement("TRUNCATE", (self._table(),))

    def _transaction(self) -> nodes.Node:
        word = self._peek(-1).upper
        if word == "START":
            self._refuse(("SLAVE", "REPLICA", "GROUP_REPLICATION"))
            self._expect("TRANSACTION")
        else:
            self._accept("WORK")
        self._refuse(words.TRANSACTION_OPTIONS, f"{word} {self.token.text}")
        return nodes.PlainStatement("BEGIN" if word == "START" else word)

    def _query(self) -> Query:
        return self._read_deeper(self._read_query)

    def _read_query(self) -> Query:
        if self._depth > 1:
            self._refuse(("WITH",), "WITH within a query")
        if self._accept("WITH"):
            self._read_list(self._common_table)
            self._refuse(("UPDATE", "DELETE"), f"WITH … {self.token.text}")
        query = self._query_member()
        for _ in range(_MAX_CHAIN):
            operator = self._accept(*_SET_OPERATIONS)
            if not operator:
                return self._query_with_tail(query)
            is_all = self._accept("ALL", "DISTINCT") == "ALL"
            if operator != "UNION" and (is_all or isinstance(query.body, nodes.Union)):
                raise Mistake.NOT_SUPPORTED(f"{operator} ALL, or after another set operation")
            query = Query(nodes.Union(query, self._query_member(), is_all, operator))
        raise Mistake.STACK()

    def _query_member(self) -> Query:
        if self.token.upper == "(":
            return self._subquery()
        self._expect("SELECT")
        return Query(self._select())

    def _query_with_tail(self, query: Query) -> Query:
        """Reads ORDER BY and LIMIT: of a UNION, or of a query in parentheses, those of all rows."""
        tail = self._tail()
        if tail == nodes.Tail():
            return query
        if isinstance(query.body, nodes.Union) or query.tail != nodes.Tail():
            simple = (nodes.ColumnName, nodes.Constant)
            if not all(isinstance(term, simple) for term, _ in tail.order):
                raise Mistake.NOT_SUPPORTED("an expression in ORDER BY of a UNION")
            everything = (nodes.Item(nodes.Star(), "", False),)
            source = nodes.Join(nodes.Derived(query, ""), "", None)
            query = Query(nodes.Select(everything, (source,), None, (), None, False))
        return query._replace(tail=tail)

    def _begins_query(self) -> bool:
        """Returns whether a parenthesis opens a query."""
        return self.token.upper == "(" and self._peek().upper in _QUERY_WORDS

    def _subquery(self) -> Query:
        self._expect("(")
        query = self._query()
        self._expect(")")
        return query

    def _common_table(self) -> None:
        """Reads a query of WITH, which stands in FROM wherever its name does."""
        name = self._name()
        if name.lower() in self._common_tables:
            raise Mistake.NOT_UNIQUE_TABLE(name)
        self._refuse(("(",), "names of columns in WITH")
        self._expect("AS")
        self._common_tables[name.lower()] = self._subquery()

    def _select(self) -> nodes.Select:
        is_distinct = self._accept("ALL", "DISTINCT", "DISTINCTROW") not in ("", "ALL")
        items: tuple[nodes.Item, ...] = ()
        if self._accept("*"):
            items = (nodes.Item(nodes.Star(), "", False),)
        if not items or self._accept(","):
            items += self._read_list(self._item)
        sources = self._sources() if self._accept("FROM") else ()
        where = self._expression() if self._accept("WHERE") else None
        group = self._read_list(self._expression) if self._accept_by("GROUP") else ()
        having = self._expression() if self._accept("HAVING") else None
        return nodes.Select(items, sources, where, group, having, is_distinct)

    def _item(self) -> nodes.Item:
        start = self.token.start
        if self._is_name() and self._peek().upper == "." and self._peek(2).upper == "*":
            table = self._name()
            self._accept_all(".", "*")
            return nodes.Item(nodes.Star(table), "", False)
        value = self._expression()
        written = self._text_since(start)
        if self._accept("AS") or self.token.kind == "text" or self._is_name():
            is_text = self.token.kind == "text"
            return nodes.Item(value, self._advance().text if is_text else self._name(), True)
        if isinstance(value, nodes.ColumnName):
            written = value.name
        elif isinstance(value, nodes.Constant) and value.kind == "text":
            written = value.text
        return nodes.Item(value, written, False)

    def _text_since(self, start: int) -> str:
        """Returns the text from a token's start to the end of the last one that was read."""
        first = self._tokens[0].start
        return self._statement.text[start - first : self._peek(-1).end - first]

    def _sources(self) -> tuple[nodes.Join, ...]:
        if self._accept("DUAL"):
            return ()
        joins = [nodes.Join(self._source(), "", None)]
        while self.token.upper in _JOINS and len(joins) <= _MAX_CHAIN:
            side = self._accept(",", "LEFT", "RIGHT")
            if side == ",":
                joins.append(nodes.Join(self._source(), side, None))
                continue
            self._accept("OUTER") if side else self._accept("INNER", "CROSS")
            self._expect("JOIN")
            source = self._source()
            has_condition = self._expect("ON") if side else self._accept("ON")
            condition = self._expression() if has_condition else None
            joins.append(nodes.Join(source, side, condition))
        if len(joins) > _MAX_CHAIN:
            raise Mistake.STACK()
        return tuple(joins)

    def _source(self) -> nodes.TableName | nodes.Derived:
        if self.token.upper != "(":
            table = self._aliased_table()
            query = self._common_tables.get(table.name.lower())
            if query is None or table.database:
                return table
            return nodes.Derived(query, table.alias, is_common=True)
        if not self._begins_query():
            raise Mistake.NOT_SUPPORTED("parentheses in FROM")
        query = self._subquery()
        if not (self._accept("AS") or self._is_name() or self.token.kind == "text"):
            raise Mistake.DERIVED_ALIAS()
        derived = nodes.Derived(query, self._name())
        self._refuse(("(",), "names of columns after a derived table's")
        return derived

    def _tail(self, *, is_change: bool = False) -> nodes.Tail:
        """Reads ORDER BY and LIMIT, which takes one whole number or two (not in a change)."""
        order = self._read_list(self._ordered) if self._accept_by("ORDER") else ()
        if not self._accept("LIMIT"):
            return nodes.Tail(order)
        count, offset = self._number(), 0
        if not is_change and self._accept(","):
            count, offset = self._number(), count
        elif not is_change and self._accept("OFFSET"):
            offset = self._number()
        return nodes.Tail(order, (count, offset))

    def _ordered(self) -> nodes.Ordered:
        return nodes.Ordered(self._expression(), self._accept("ASC", "DESC") == "DESC")

    def _number(self) -> int:
        text = self.token.text
        is_whole = self.token.kind == "number" and text.isdigit() and len(text) <= _MAX_DIGITS
        if not is_whole or int(text) >= 1 << 64:
            self.fail()
        return int(self._advance().text)

    def _expression(self) -> Expression:
        return self._read_deeper(lambda: self._operation(1))

    def _operation(self, least: int) -> Expression:
        """Reads what operators combine that bind at least so strongly.

        What stands between two operators belongs to the one that binds more strongly.
        """
        if self.token.upper == "NOT" and least <= _BINDING["NOT"]:
            self._advance()
            value: Expression = Operator("NOT", (self._read_deeper(lambda: self._operation(3)),))
        else:
            value = self._signed()
        most = _PRODUCT
        for _ in range(_MAX_CHAIN):
            upper = self.token.upper
            is_negated = upper == "NOT" and self._peek().upper in {*_PREDICATES, *words.REFUSED}
            binding = _PREDICATE if is_negated else _BINDING.get(upper, 0)
            if (upper == "NOT" and not is_negated) or not least <= binding <= most:
                return value
            most = binding
            if binding <= _BINDING["AND"]:
                value = self._connection(value, binding)
            elif binding == _PREDICATE:
                value, most = self._predicate(value), binding - 1
            elif binding < _PREDICATE:
                value = self._comparison(value)
            else:
                value = self._calculation(value, binding)
        raise Mistake.STACK()

    def _connection(self, first: Expression, binding: int) -> Expression:
        """Reads a chain of AND or OR, which may be long."""
        operands = [first]
        operator = _SYNONYMS.get(self.token.upper, self.token.upper)
        while _BINDING.get(self.token.upper) == binding:
            self._advance()
            operands.append(self._operation(binding + 1))
        return Operator(operator, tuple(operands))

    def _comparison(self, left: Expression) -> Expression:
        operator = self._advance().upper
        if operator == "IS":
            negation = "NOT " if self._accept("NOT") else ""
            truth = self._expect("NULL", "TRUE", "FALSE", "UNKNOWN")
            return Operator(f"IS {negation}{'NULL' if truth == 'UNKNOWN' else truth}", (left,))
        operator = _SYNONYMS.get(operator, operator)
        if self.token.upper in ("ANY", "SOME", "ALL") and self._peek().upper == "(":
            operator = f"{operator} {self._advance().upper}"
            if operator not in _QUANTIFIED:
                raise Mistake.NOT_SUPPORTED(operator)
            return Operator(_QUANTIFIED[operator], (left, self._subquery()))
        return Operator(operator, (left, self._operation(_PREDICATE)))

    def _predicate(self, left: Expression) -> Expression:
        negation = "NOT " if self._accept("NOT") else ""
        operator = self._expect(*_PREDICATES)
        operands: tuple[Expression, ...]
        if operator == "LIKE":
            operands = (self._signed(),)
            self._refuse(("ESCAPE",))
        elif operator == "BETWEEN":
            low = self._operation(_SUM)
            self._expect("AND")
            operands = (low, self._read_deeper(lambda: self._operation(_PREDICATE)))
        elif self._begins_query():
            operands = (self._subquery(),)
        elif self._peek().upper == "(" and self._peek(2).upper in _QUERY_WORDS:
            raise Mistake.NOT_SUPPORTED("IN with a query in a list")  # MySQL reads IN (SELECT …)
        else:
            operands = self._read_in_parentheses(self._expression)
            if len(operands) == 1:
                return Operator("<>" if negation else "=", (left, *operands))
        return Operator(negation + operator, (left, *operands))

    def _calculation(self, left: Expression, binding: int) -> Expression:
        operator = _SYNONYMS.get(self.token.upper, self.token.upper)
        self._advance()
        if binding == _SUM and self._accept("INTERVAL"):
            return self._shift(left, "DATE_ADD" if operator == "+" else "DATE_SUB")
        return Operator(operator, (left, self._operation(binding + 1)))

    def _shift(self, date: Expression, name: str) -> nodes.Call:
        """Reads an interval. Raises: MySQLError (1064 for one without a unit)."""
        amount = self._expression()
        unit = nodes.Constant(self._expect(*words.INTERVAL_UNITS), "text")
        return nodes.Call(name, (date, amount, unit))

    def _signed(self) -> Expression:
        sign = self._accept("-", "+")
        if not sign:
            return self._operand()
        value = self._read_deeper(self._signed)
        return Operator("NEGATIVE", (value,)) if sign == "-" else value

    def _operand(self) -> Expression:
        """Reads what no operator stands in."""
        token, upper = self.token, self.token.upper
        if token.kind in ("number", "text") or upper in ("NULL", "TRUE", "FALSE"):
            return self._constant()
        is_called = self._peek().upper == "("
        if is_called and (self._is_name() or upper in words.CALLABLE):
            return self._call()
        if upper in words.CALLED_WITHOUT_PARENTHESES:
            call = nodes.Call(self._advance().text, ())
            if self._accept("(") and not self._accept(")"):
                raise Mistake.NOT_SUPPORTED(f"{upper} with an argument")
            return call
        if self._is_name():
            if upper in words.FUNCTIONS | {"DATE"} and self._peek().kind == "text":
                raise Mistake.NOT_SUPPORTED(f"{upper} '…'")
            return self._column()
        if self._begins_query():
            return self._subquery()
        if upper == "(":
            return self._parenthesized()
        if self._accept("EXISTS"):
            return Operator("EXISTS", (self._subquery(),))
        return self._case() if self._accept("CASE") else self.fail()

    def _constant(self) -> nodes.Constant:
        token = self._advance()
        if token.kind == "number":
            if len(token.text) > _MAX_DIGITS or math.isinf(float(token.text)):
                raise Mistake.NOT_SUPPORTED(token.text)
            return nodes.Constant(token.text, "number")
        if token.kind == "text":
            text = token.text
            while self.token.kind == "text":  # 'a' 'b' is one text
                text += self._advance().text
            return nodes.Constant(text, "text")
        return _NULL if token.upper == "NULL" else nodes.Constant(token.upper, "boolean")

    def _column(self) -> Expression:
        """Reads a column's name, or the call of a function that is another database's."""
        names = [self._name()]
        while len(names) < 3 and self._accept("."):
            names.append(self._name(may_be_reserved=True))
        if len(names) > 1 and self.token.upper == "(":
            return self._finish_call(".".join(names))
        return nodes.ColumnName(*reversed(names))

    def _parenthesized(self) -> Expression:
        self._advance()
        value = self._expression()
        self._refuse((",",), "rows as values")
        self._refuse(_SET_OPERATIONS, "parentheses around the first query of several")
        self._expect(")")
        return value

    def _case(self) -> Expression:
        operand = None if self.token.upper == "WHEN" else self._expression()
        branches: list[tuple[Expression, Expression]] = []
        while not branches or self.token.upper == "WHEN":
            self._expect("WHEN")
            condition = self._expression()
            self._expect("THEN")
            branches.append((condition, self._expression()))
        default = self._expression() if self._accept("ELSE") else _NULL
        self._expect("END")
        return nodes.Case(operand, tuple(branches), default)

    def _call(self) -> Expression:
        token = self.token
        if token.upper in words.FUNCTIONS:
            raise Mistake.NOT_SUPPORTED(token.text)
        if token.upper in words.GLUED and token.end != self._peek().start:
            if self._peek(2).upper == "*":
                raise self._statement.syntax_error(self._peek(2).start)
            raise Mistake.FUNCTION_SPACE("db", token.text)
        return self._finish_call(self._name(may_be_reserved=True))

    def _finish_call(self, name: str) -> Expression:
        upper = name.upper()
        self._expect("(")
        if upper == "CAST":
            return self._cast()
        if upper in words.DATE_SHIFTS:
            date = self._expression()
            self._expect(",")
            if not self._accept("INTERVAL"):
                raise Mistake.NOT_SUPPORTED(f"{name} without INTERVAL")
            shift = self._shift(date, words.DATE_SHIFTS[upper])
            self._expect(")")
            return shift
        is_aggregate = upper in words.AGGREGATES
        is_distinct = is_aggregate and self._accept("DISTINCT", "ALL") == "DISTINCT"
        arguments: tuple[Expression, ...] = ()
        if upper == "COUNT" and not is_distinct and self._accept("*"):
            arguments = (nodes.Star(),)
        elif upper == "TIMESTAMPDIFF":
            unit = nodes.Constant(self._expect(*words.INTERVAL_UNITS), "text")
            self._expect(",")
            arguments = (unit, *self._read_list(self._expression))
        elif is_aggregate or self.token.upper != ")":
            arguments = self._read_list(self._expression)
        if upper in words.WITH_FROM:
            self._refuse(("FROM",), f"{name} with FROM")
        self._expect(")")
        window = self._window() if self._accept("OVER") else None
        if window is None and upper in words.WINDOW_FUNCTIONS:
            self.fail()
        return nodes.Call(name, arguments, is_distinct, window)

    def _window(self) -> nodes.Window:
        partition: tuple[Expression, ...] = ()
        order: tuple[nodes.Ordered, ...] = ()
        is_named = self._is_name() or not self._accept("(") or self._is_name()
        if not is_named:
            partition = self._read_list(self._expression) if self._accept_by("PARTITION") else ()
            order = self._read_list(self._ordered) if self._accept_by("ORDER") else ()
        if (is_named and self._is_name()) or self.token.upper in ("ROWS", "RANGE"):
            raise Mistake.NOT_SUPPORTED("named windows, and frames of windows")
        self._expect(")")
        return nodes.Window(partition, order)

    def _cast(self) -> nodes.Cast:
        value = self._expression()
        self._expect("AS")
        name = self._expect("SIGNED", "UNSIGNED", "DECIMAL", "CHAR", "DATE", "DATETIME")
        sizes: tuple[int, ...] = ()
        if name.endswith("SIGNED"):
            self._accept("INTEGER", "INT")
        elif self.token.upper == "(":
            sizes = self._read_in_parentheses(self._number)
        self._expect(")")
        return nodes.Cast(value, name, sizes)
