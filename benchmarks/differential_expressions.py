"""Random MySQL statements over two random tables: what agents write, and some that are wrong.

`orders_t` and `people_t` have NULLs, mixed-case text, text that looks like numbers, decimals,
doubles and dates. Ordered statements end with a unique key, so that their rows have one order.
"""

from datetime import date, timedelta
from decimal import Decimal
from random import Random

from agentpeft.envs.db_bench.backends.protocol import Column, Row, Table, Value

WORDS = ("apple", "Apple", "BANANA", "banana", "Cherry", "kiwi", "Lime", "fig tree", "O'Hara", "")
NUMERALS = ("12", "7.5", "abc", "3 apples", "0", "-4", "007", "1e2")
PEOPLE = "people_t"
ORDERS = "orders_t"
NUMBERS = ("id", "qty", "person_id", "price", "weight")
TEXTS = ("name", "code", "note")


def make_tables(rng: Random) -> tuple[Table, Table]:
    """Returns `orders_t` (5 to 12 rows) and `people_t` (3 to 7)."""

    def maybe(value: Value) -> Value:
        return None if rng.random() < 0.15 else value

    def day() -> date:
        return date(2022, 1, 1) + timedelta(days=rng.randrange(900))

    orders: list[Row] = [
        (
            index + 1,
            maybe(rng.choice(WORDS)),
            rng.choice(NUMERALS),
            maybe(rng.randint(-3, 30)),
            maybe(rng.randint(1, 7)),
            maybe(Decimal(rng.randint(-500, 9000)) / 100),
            maybe(rng.randint(-40, 400) / 8),
            maybe(day()),
            rng.choice(WORDS),
        )
        for index in range(rng.randint(5, 12))
    ]
    people: list[Row] = [
        (index + 1, rng.choice(WORDS), maybe(rng.randint(18, 60)), maybe(day()))
        for index in range(rng.randint(3, 7))
    ]
    order_columns = (
        ("id", "INT"),
        ("name", "VARCHAR(40)"),
        ("code", "TEXT"),
        ("qty", "INT"),
        ("person_id", "INT"),
        ("price", "DECIMAL(10,2)"),
        ("weight", "DOUBLE"),
        ("made_on", "DATE"),
        ("note", "VARCHAR(20)"),
    )
    people_columns = (("pid", "INT"), ("pname", "VARCHAR(40)"), ("age", "INT"), ("born", "DATE"))
    return (
        Table(ORDERS, tuple(Column(*column) for column in order_columns), tuple(orders)),
        Table(PEOPLE, tuple(Column(*column) for column in people_columns), tuple(people)),
    )


class Expressions:
    """Random expressions over the columns of `orders_t`, written with a prefix."""

    def __init__(self, rng: Random, prefix: str = "", text_number: str = "code") -> None:
        """`prefix` is "" or an alias with its dot; `text_number` is the text used as a number."""
        self.rng = rng
        self.prefix = prefix
        self.text_number = prefix + text_number

    def pick(self, *options: str) -> str:
        """Returns one of the options."""
        return self.rng.choice(options)

    def column(self, names: tuple[str, ...]) -> str:
        """Returns one of the columns."""
        return self.prefix + self.rng.choice(names)

    def number(self, depth: int = 1) -> str:
        """Returns a number."""
        if depth <= 0 or self.rng.random() < 0.3:
            literal = self.pick("0", "1", "2", "3", "7", "10", "1.5", "0.25", "-2", "100")
            return self.pick(*[self.column(NUMBERS) for _ in range(4)], literal)
        a, b = self.number(depth - 1), self.number(depth - 1)
        text, day = self.text(depth - 1), self.day(depth - 1)
        return self.pick(
            f"{a} + {b}", f"{a} - {b}", f"{a} * {b}", f"({a}) / {b}", f"({a}) DIV {b}",
            f"({a}) % {b}", f"MOD({a}, {b})", f"ABS({a})", f"ROUND({a})", f"ROUND({a}, 1)",
            f"FLOOR({a})", f"CEIL({a})", f"GREATEST({a}, {b})", f"LEAST({a}, {b})",
            f"IFNULL({a}, {b})", f"COALESCE({a}, {b}, 0)", f"NULLIF({a}, {b})", f"-({a})",
            f"IF({self.condition(depth - 1)}, {a}, {b})", f"SIGN({a})", f"TRUNCATE({a}, 1)",
            f"CASE WHEN {self.condition(depth - 1)} THEN {a} ELSE {b} END",
            f"LENGTH({text})", f"CHAR_LENGTH({text})", f"LOCATE('a', {text})",
            f"INSTR({text}, 'p')",
            f"YEAR({day})", f"MONTH({day})", f"DAY({day})", f"DAYOFWEEK({day})", f"QUARTER({day})",
            f"DATEDIFF({day}, '2023-01-01')", f"{self.text_number} + 0", f"POWER({a}, 2)",
            f"CAST({a} AS SIGNED)", f"CAST({a} AS DECIMAL(12,1))", f"({self.condition(0)})",
            f"SQRT(ABS({a}))", f"TIMESTAMPDIFF(DAY, {day}, '2024-01-01')",
        )  # fmt: skip

    def text(self, depth: int = 1) -> str:
        """Returns a text."""
        if depth <= 0 or self.rng.random() < 0.3:
            return self.pick(*[self.column(TEXTS) for _ in range(4)], "'apple'", "'Zed'", "'12'")
        a, b = self.text(depth - 1), self.text(depth - 1)
        k = self.rng.randint(1, 4)
        day = self.column(("made_on",))
        form = self.pick("%Y-%m", "%d/%m/%Y", "%Y", "%M %e", "%b %d", "%W", "%y%j")
        return self.pick(
            f"CONCAT({a}, '-', {b})", f"CONCAT_WS('/', {a}, {b})", f"UPPER({a})", f"LOWER({a})",
            f"SUBSTRING({a}, {k}, 3)", f"SUBSTR({a}, -{k})", f"LEFT({a}, {k})", f"RIGHT({a}, {k})",
            f"TRIM({a})", f"REPLACE({a}, 'a', 'x')", f"LPAD({a}, 6, '*')", f"RPAD({a}, 5, '.')",
            f"REVERSE({a})", f"IFNULL({a}, 'none')", f"COALESCE({a}, {b}, '')",
            f"REPEAT('ab', {k})",
            f"IF({self.condition(depth - 1)}, {a}, {b})", f"DATE_FORMAT({day}, '{form}')",
            f"CAST({self.column(NUMBERS)} AS CHAR)", f"CONCAT({self.column(NUMBERS)}, ' kg')",
            f"SUBSTRING_INDEX({a}, ' ', 1)", f"MONTHNAME({day})", f"DAYNAME({day})",
            f"CASE {self.column(('qty', 'id'))} WHEN 1 THEN 'one' WHEN 2 THEN 'two' ELSE {a} END",
        )  # fmt: skip

    def day(self, depth: int = 1) -> str:
        """Returns a date."""
        column = self.column(("made_on",))
        if depth <= 0 or self.rng.random() < 0.6:
            return self.pick(column, column, "'2023-02-28'")
        k = self.rng.randint(1, 40)
        return self.pick(
            f"DATE_ADD({column}, INTERVAL {k} DAY)", f"DATE_SUB({column}, INTERVAL {k} MONTH)",
            f"DATE_ADD({column}, INTERVAL 1 YEAR)", f"LAST_DAY({column})",
            f"{column} + INTERVAL {k} DAY", f"DATE({column})",
        )  # fmt: skip

    def condition(self, depth: int = 1) -> str:
        """Returns a condition."""
        if depth > 0 and self.rng.random() < 0.4:
            a, b = self.condition(depth - 1), self.condition(depth - 1)
            return self.pick(f"{a} AND {b}", f"({a} OR {b})", f"NOT ({a})", f"{a} OR {b}")
        number, other, text = self.number(depth - 1), self.number(depth - 1), self.text(depth - 1)
        operator = self.pick("=", "<>", "<", ">", "<=", ">=", "!=")
        k = self.rng.randint(0, 12)
        word = self.rng.choice(WORDS).replace("'", "''")
        day = self.column(("made_on",))
        return self.pick(
            f"{number} {operator} {other}", f"{number} {operator} {k}",
            f"{text} {operator} '{word}'", f"{text} LIKE '%a%'", f"{text} LIKE 'b%'",
            f"{text} NOT LIKE '_i%'", f"{number} BETWEEN {k} AND {k + 9}",
            f"{self.column(NUMBERS)} IN (1, 2, {k})", f"{text} IN ('apple', 'KIWI', '{word}')",
            f"{self.column((*NUMBERS, *TEXTS))} IS NULL", f"{day} IS NOT NULL",
            f"{self.column(NUMBERS)} NOT IN (3, {k})", f"{self.text_number} {operator} {k}",
            f"{day} {operator} '2023-03-0{self.rng.randint(1, 9)}'", f"YEAR({day}) = 2023",
            f"{day} BETWEEN '2022-06-01' AND '2023-06-30'", f"{text} REGEXP '^[a-c]'",
            f"{self.column(('qty',))} {operator} '{k}'", f"{number} <=> {k}",
        )  # fmt: skip

    def aggregate(self) -> str:
        """Returns an aggregate."""
        number, column = self.number(1), self.column(NUMBERS)
        return self.pick(
            "COUNT(*)", "COUNT(*)", f"COUNT({column})", f"COUNT(DISTINCT {self.column(TEXTS)})",
            f"SUM({number})", f"SUM({column})", f"AVG({column})", f"AVG({number})",
            f"MAX({column})", f"MIN({column})", f"MAX({self.column(('made_on',))})",
            f"MIN({self.column(TEXTS)})", f"ROUND(AVG({column}), 2)", f"ROUND(STDDEV({column}), 2)",
            f"ROUND(VARIANCE({column}), 2)", f"GROUP_CONCAT({column} ORDER BY {self.prefix}id)",
            f"SUM({column}) / COUNT(*)", f"MAX({column}) - MIN({column})",
            f"STDDEV_SAMP({self.prefix}weight)",
            f"GROUP_CONCAT(DISTINCT {self.prefix}qty ORDER BY {self.prefix}qty SEPARATOR '; ')",
            f"SUM(CASE WHEN {self.condition(0)} THEN 1 ELSE 0 END)", f"SUM({self.condition(0)})",
        )  # fmt: skip
