"""A bare SQLite connection that the tests of the translation play MySQL on."""

import sqlite3

from agentpeft.envs.db_bench.backends.protocol import Row
from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import MySQLError
from agentpeft.envs.db_bench.backends.sqlite.mysql.parse.statements import parse_statements
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.collation import install_collation
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.functions import RuntimeFunctions
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.rows import to_mysql_rows
from agentpeft.envs.db_bench.backends.sqlite.mysql.translate import StatementKind, translate
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import Schema

STAFF = """
CREATE TABLE staff (id INT, name VARCHAR(20), team VARCHAR(20), pay DECIMAL(10,2),
  age INT, hired DATE, score FLOAT, note TEXT);
INSERT INTO staff VALUES (1, 'Alice', 'Sales', 5000, 30, '2020-01-15', 3.5, 'hello'),
  (2, 'bob', 'sales', 4200.5, 25, '2019-06-30', 0.1, NULL),
  (3, 'Carol', 'HR', 6100.75, 41, '2018-11-05', NULL, '12 apples'),
  (4, 'dave', 'HR', 6100.75, NULL, NULL, 4.1, ''),
  (5, 'Éve', 'IT', NULL, 35, '2021-03-10', 1.1, 'x,y');
CREATE TABLE team (label VARCHAR(20), boss VARCHAR(20), budget INT);
INSERT INTO team VALUES ('Sales', 'Alice', 100), ('HR', 'Carol', 200), ('Legal', 'Zed', 300)
"""


class TranslatedMySQL:
    """One database with the tables `staff` and `team`."""

    def __init__(self) -> None:
        self._connection = sqlite3.connect(":memory:", isolation_level=None)
        self._functions = RuntimeFunctions(self._connection)
        install_collation(self._connection)
        self._schema = Schema("shop", ())
        self.rows(STAFF)

    def rows(self, sql: str) -> list[Row]:
        """Runs statements and returns the rows of the last. Raises: MySQLError."""
        result: list[Row] = []
        for statement in parse_statements(sql):
            translation = translate(statement, self._schema)
            self._schema = translation.schema or self._schema
            results = [self._execute(text) for text in translation.sql]
            result = []
            if translation.kind is StatementKind.READ:
                result = list(to_mysql_rows(results[0], translation.types))
        return result

    def error(self, sql: str) -> str:
        """Returns the text of the error that a statement gives."""
        try:
            return f"no error: {self.rows(sql)}"
        except MySQLError as error:
            return str(error)

    def _execute(self, sql: str) -> list[tuple[object, ...]]:
        self._functions.install(sql)
        try:
            return self._connection.execute(sql).fetchall()
        except sqlite3.Error:
            error = self._functions.take_error()
            if error is None:
                raise
            raise error from None
