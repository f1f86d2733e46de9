"""MySQL 8's errors: numbers, SQLSTATEs and texts."""

from enum import Enum


class MySQLError(Exception):
    """An error as MySQL reports it; `str()` is the text of mysql-connector's errors."""

    def __init__(self, number: int, sqlstate: str, message: str) -> None:
        super().__init__(number, sqlstate, message)
        self.number = number
        self.sqlstate = sqlstate
        self.message = message

    def __str__(self) -> str:
        return f"{self.number} ({self.sqlstate}): {self.message}"


class Mistake(Enum):
    """The mistakes that this package can report, as MySQL prints them; `{}` are the details."""

    TABLE_EXISTS = "1050 (42S01): Table '{}' already exists"
    UNKNOWN_TABLE = "1051 (42S02): Unknown table '{}'"
    AMBIGUOUS = "1052 (23000): Column '{}' in {} is ambiguous"
    UNKNOWN_TABLE_IN = "1109 (42S02): Unknown table '{}' in {}"
    UNKNOWN_COLUMN = "1054 (42S22): Unknown column '{}' in '{}'"
    WRONG_GROUP_FIELD = "1056 (42000): Can't group on '{}'"
    DUPLICATE_COLUMN = "1060 (42S21): Duplicate column name '{}'"
    SYNTAX = (
        "1064 (42000): You have an error in your SQL syntax; check the manual that corresponds "
        "to your MySQL server version for the right syntax to use near '{}' at line {}"
    )
    EMPTY_QUERY = "1065 (42000): Query was empty"
    NOT_UNIQUE_TABLE = "1066 (42000): Not unique table/alias: '{}'"
    UPDATE_TARGET = "1093 (HY000): You can't specify target table '{}' for update in FROM clause"
    FIELD_TWICE = "1110 (42000): Column '{}' specified twice"
    GROUP_FUNCTION = "1111 (HY000): Invalid use of group function"
    COLUMN_COUNT = "1136 (21S01): Column count doesn't match value count at row {}"
    MIXED_GROUP = (
        "1140 (42000): In aggregated query without GROUP BY, expression #{} of SELECT list "
        "contains nonaggregated column '{}'; this is incompatible with "
        "sql_mode=only_full_group_by"
    )
    COMMAND_DENIED = "1142 (42000): {} command denied to user 'agent'@'%' for table '{}'"
    NO_TABLE = "1146 (42S02): Table '{}.{}' doesn't exist"
    UNION_COLUMNS = "1222 (21000): The used SELECT statements have a different number of columns"
    FUNCTION_DENIED = "1370 (42000): execute command denied to user 'agent'@'%' for routine '{}'"
    NOT_SUPPORTED = "1235 (42000): This version of MySQL doesn't yet support '{}'"
    OPERAND = "1241 (21000): Operand should contain {} column(s)"
    SUBQUERY_ROWS = "1242 (21000): Subquery returns more than 1 row"
    NO_COLUMNS = "1113 (42000): A table must have at least 1 column"
    NO_TABLES = "1096 (HY000): No tables used"
    DERIVED_ALIAS = "1248 (42000): Every derived table must have its own alias"
    OUT_OF_RANGE = "1264 (22003): Out of range value for column '{}' at row {}"
    TRUNCATED = "1265 (01000): Data truncated for column '{}' at row {}"
    BAD_TEMPORAL = "1292 (22007): Incorrect {} value: '{}' for column '{}' at row {}"
    BAD_NAME = "1300 (HY000): Invalid utf8mb3 character string: '{}'"
    WRONG_TABLE_NAME = "1103 (42000): Incorrect table name '{}'"
    WRONG_COLUMN_NAME = "1166 (42000): Incorrect column name '{}'"
    TRUNCATED_NUMBER = "1292 (22007): Truncated incorrect DOUBLE value: '{}'"
    NO_FUNCTION = "1305 (42000): FUNCTION {}.{} does not exist"
    DIVISION_BY_ZERO = "1365 (22012): Division by 0"
    BAD_NUMBER = "1366 (HY000): Incorrect {} value: '{}' for column '{}' at row {}"
    TOO_LONG = "1406 (22001): Data too long for column '{}' at row {}"
    STACK = (
        "1436 (HY000): Thread stack overrun:  246704 bytes used of a 262144 byte stack, and "
        "20000 bytes needed.  Use 'mysqld --thread_stack=#' to specify a bigger stack."
    )
    BAD_LITERAL = "1525 (HY000): Incorrect {} value: '{}'"
    REFERENCE = "1247 (42S22): Reference '{}' not supported (reference to group function)"
    ARGUMENTS = "1582 (42000): Incorrect parameter count in the call to native function '{}'"
    FUNCTION_SPACE = (
        "1630 (42000): FUNCTION {}.{} does not exist. Check the 'Function Name Parsing and "
        "Resolution' section in the Reference Manual"
    )
    NUMBER_RANGE = "1690 (22003): {} value is out of range in '{}'"
    TIMEOUT = (
        "3024 (HY000): Query execution was interrupted, maximum statement execution time exceeded"
    )
    DISTINCT_ORDER = (
        "3065 (HY000): Expression #{} of ORDER BY clause is not in SELECT list, references "
        "column '{}' which is not in SELECT list; this is incompatible with DISTINCT"
    )
    FULL_GROUP_BY = (
        "1055 (42000): Expression #{} of {} is not in GROUP BY clause and contains nonaggregated "
        "column '{}' which is not functionally dependent on columns in GROUP BY clause; this is "
        "incompatible with sql_mode=only_full_group_by"
    )
    WINDOW_MISUSE = "3593 (HY000): You cannot use the window function '{}' in this context.'"

    def __call__(self, *details: object) -> MySQLError:
        """Returns the error, its text filled with `details`."""
        head, _, text = self.value.partition("): ")
        number, _, sqlstate = head.partition(" (")
        return MySQLError(int(number), sqlstate, text.format(*details))
