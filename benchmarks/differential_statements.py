"""Random MySQL statements of every common shape over two random tables, some of them wrong.

Left out is where MariaDB and MySQL differ: text that is no number, compared with one in a DELETE or
an ordered UPDATE, is error 1292 on MySQL only; and the digits of STDDEV and VARIANCE.
"""

from dataclasses import dataclass
from random import Random

from differential_expressions import NUMBERS, ORDERS, PEOPLE, TEXTS, Expressions


@dataclass(frozen=True)
class Statement:
    """A statement; `is_ordered`: its rows have one order."""

    sql: str
    is_ordered: bool = False
    is_write: bool = False


def make_statement(rng: Random) -> Statement:
    """Returns a random statement about the two tables."""
    makers = (
        _plain,
        _plain,
        _plain,
        _ordered,
        _ordered,
        _distinct,
        _aggregated,
        _grouped,
        _grouped,
    )
    more = (
        _joined,
        _joined,
        _joined_groups,
        _subquery,
        _subquery,
        _derived,
        _union,
        _window,
        _wrong,
        _rows_compared,
    )
    changes = (
        _insert,
        _insert_select,
        _update,
        _update,
        _update_join,
        _delete,
        _delete_join,
        _keys,
    )
    return rng.choice((*makers, *more, *changes))(rng)


def _plain(rng: Random) -> Statement:
    alias = rng.choice(("", "o", "AS o"))
    e = Expressions(rng, "o." if alias else rng.choice(("", "", f"{ORDERS}.")))
    shown = [
        rng.choice((e.number, e.text, e.day, e.condition))(rng.choice((0, 1, 2))) for _ in "ab"
    ]
    sql = f"SELECT {e.prefix}id, {shown[0]} AS shown, {shown[1]} FROM {ORDERS} {alias}"
    return Statement(f"{sql} WHERE {e.condition(2)}" if rng.random() < 0.7 else sql)


def _ordered(rng: Random) -> Statement:
    e = Expressions(rng)
    key = rng.choice((e.column(NUMBERS), e.column(TEXTS), e.number(1), "made_on", "LENGTH(name)"))
    limit = rng.choice(("", " LIMIT 3", " LIMIT 2, 3", " LIMIT 4 OFFSET 1", " LIMIT 100"))
    where = f" WHERE {e.condition(1)}" if rng.random() < 0.5 else ""
    order = f" ORDER BY {key}{rng.choice(('', ' DESC', ' ASC'))}, id{rng.choice(('', ' DESC'))}"
    return Statement(f"SELECT name, qty, {e.number(1)} FROM {ORDERS}{where}{order}{limit}", True)


def _distinct(rng: Random) -> Statement:
    e = Expressions(rng)
    shown = rng.choice((e.column(NUMBERS), "YEAR(made_on)", "qty % 3", "person_id, qty > 5"))
    return Statement(f"SELECT DISTINCT {shown} FROM {ORDERS} WHERE {e.condition(1)}")


def _aggregated(rng: Random) -> Statement:
    e = Expressions(rng)
    where = f" WHERE {e.condition(1)}" if rng.random() < 0.6 else ""
    return Statement(f"SELECT {e.aggregate()}, {e.aggregate()} AS x FROM {ORDERS}{where}")


def _grouped(rng: Random) -> Statement:
    e = Expressions(rng)
    keys = rng.choice(("person_id", "YEAR(made_on)", "qty % 3", "person_id, qty > 5", "qty"))
    where = f" WHERE {e.condition(1)}" if rng.random() < 0.4 else ""
    condition = f"{e.aggregate()} {rng.choice('<>=')} {rng.randint(0, 20)}"
    having = rng.choice(
        ("", "", f" HAVING {condition}", " HAVING n > 1", f" HAVING NOT {condition}")
    )
    tail = f" GROUP BY {keys}{having}"
    head = f"SELECT {keys}, COUNT(*) AS n, {e.aggregate()} FROM {ORDERS}{where}{tail}"
    return Statement(f"{head} ORDER BY {keys}", True) if rng.random() < 0.4 else Statement(head)


def _joined(rng: Random) -> Statement:
    e = Expressions(rng, "o.")
    join = rng.choice(("JOIN", "INNER JOIN", "LEFT JOIN"))
    shown = rng.choice(("p.pname, o.id", "o.id, p.age, o.qty", "o.*", "o.id, UPPER(p.pname)"))
    source = f"{ORDERS} AS o {join} {PEOPLE} p ON o.person_id = p.pid"
    if rng.random() < 0.15:
        source = f"{ORDERS} o, {PEOPLE} p WHERE o.person_id = p.pid AND {e.condition(0)}"
        return Statement(f"SELECT {shown} FROM {source}")
    where = f" WHERE {e.condition(1)}" if rng.random() < 0.6 else ""
    return Statement(f"SELECT {shown}, {e.number(1)} FROM {source}{where}")


def _joined_groups(rng: Random) -> Statement:
    e = Expressions(rng, "o.")
    join = rng.choice(("JOIN", "LEFT JOIN"))
    sql = f"SELECT p.pid, COUNT(o.id) AS n, {e.aggregate()} FROM {PEOPLE} p {join} {ORDERS} o"
    order = " ORDER BY n DESC, p.pid" if rng.random() < 0.5 else ""
    return Statement(f"{sql} ON o.person_id = p.pid GROUP BY p.pid{order}", bool(order))


def _subquery(rng: Random) -> Statement:
    e, inner = Expressions(rng, "o."), Expressions(rng)
    column = rng.choice(NUMBERS)
    condition = rng.choice(
        (
            f"o.{column} > (SELECT AVG({column}) FROM {ORDERS})",
            f"o.{column} = (SELECT MAX({column}) FROM {ORDERS} WHERE {inner.condition(0)})",
            f"o.person_id IN (SELECT pid FROM {PEOPLE} WHERE age > 30)",
            f"o.person_id NOT IN (SELECT pid FROM {PEOPLE} WHERE age > 40)",
            f"EXISTS (SELECT 1 FROM {PEOPLE} p WHERE p.pid = o.person_id AND p.age < 45)",
            f"NOT EXISTS (SELECT 1 FROM {PEOPLE} p WHERE p.pid = o.person_id)",
            f"o.qty > (SELECT AVG(i.qty) FROM {ORDERS} i WHERE i.person_id = o.person_id)",
            f"o.qty >= ALL (SELECT qty FROM {ORDERS} WHERE qty IS NOT NULL)",
            f"o.qty = ANY (SELECT age - 30 FROM {PEOPLE})",
        )
    )
    shown = rng.choice((e.number(1), e.text(1), f"(SELECT COUNT(*) FROM {PEOPLE})"))
    return Statement(f"SELECT o.id, {shown} FROM {ORDERS} o WHERE {condition}")


def _derived(rng: Random) -> Statement:
    e = Expressions(rng)
    inner = (
        f"SELECT person_id, {e.aggregate()} AS x, COUNT(*) AS n FROM {ORDERS} GROUP BY person_id"
    )
    outer = rng.choice(("d.person_id, d.x", "MAX(d.n)", "AVG(n)", "d.n * 2"))
    if rng.random() < 0.3:
        return Statement(f"WITH d AS ({inner}) SELECT {outer} FROM d WHERE d.n >= 1")
    return Statement(f"SELECT {outer} FROM ({inner}) AS d WHERE d.n > 0")


def _union(rng: Random) -> Statement:
    e = Expressions(rng)
    both = (f"SELECT name FROM {ORDERS} WHERE {e.condition(1)}", f"SELECT pname FROM {PEOPLE}")
    if rng.random() < 0.5:
        return Statement(" UNION ALL ".join(both))
    numbers = (f"SELECT qty FROM {ORDERS}", f"SELECT age - 20 FROM {PEOPLE}")
    return Statement(f"{' UNION '.join(numbers)} ORDER BY 1 LIMIT 6", True)


def _window(rng: Random) -> Statement:
    function = rng.choice(("ROW_NUMBER()", "SUM(qty)", "RANK()", "LAG(qty)", "COUNT(*)"))
    over = rng.choice(("ORDER BY id", "PARTITION BY person_id ORDER BY id", "ORDER BY qty, id"))
    return Statement(f"SELECT id, {function} OVER ({over}) AS w FROM {ORDERS}")


def _wrong(rng: Random) -> Statement:
    return Statement(
        rng.choice(
            (
                f"SELECT missing FROM {ORDERS}",
                "SELECT * FROM missing_table",
                f"SELECT name, COUNT(*) FROM {ORDERS} GROUP BY person_id",
                f"SELECT id, MAX(qty) FROM {ORDERS}",
                f"SELEC id FROM {ORDERS}",
                f"SELECT id FROM {ORDERS} WHERE",
                f"SELECT id FROM {ORDERS} WHERE COUNT(*) > 1",
                f"SELECT o.id FROM {ORDERS} o JOIN {ORDERS} p ON o.id = p.id WHERE qty > 1",
                f"SELECT missing.id FROM {ORDERS}",
                f"INSERT INTO {ORDERS} (id, name) VALUES (1)",
                f"INSERT INTO {ORDERS} (id, missing) VALUES (1, 2)",
                f"INSERT INTO {ORDERS} (id, qty) VALUES (1, 'many')",
                f"INSERT INTO {ORDERS} (id, note) VALUES (1, '{'x' * 25}')",
                f"UPDATE {ORDERS} SET missing = 1",
                f"UPDATE {ORDERS} SET made_on = '2023-02-31'",
                f"DELETE FROM {PEOPLE} WHERE missing = 1",
                f"SELECT id FROM {ORDERS} UNION SELECT pid, age FROM {PEOPLE}",
                f"SELECT id FROM {ORDERS} WHERE qty = (SELECT pid FROM {PEOPLE})",
                f"SELECT COUNT(*) FROM {ORDERS} AS o WHERE orders_t.id = 1",
            )
        )
    )


def _insert(rng: Random) -> Statement:
    qty, price = rng.randint(-5, 50), rng.choice(("9.99", "12", "1.005", "'3.5'", "NULL", "-0.125"))
    day = rng.choice(("'2023-05-06'", "NULL", "'2024-02-29'", "DATE '2022-01-31'"))
    values = f"({rng.randint(50, 99)}, 'New Name', {qty}, {price}, {day})"
    more = f", ({rng.randint(100, 150)}, 'other', 1 + {qty}, 2 * 3, {day})" if qty > 20 else ""
    sql = f"INSERT INTO {ORDERS} (id, name, qty, price, made_on) VALUES {values}{more}"
    return Statement(sql, is_write=True)


def _insert_select(rng: Random) -> Statement:
    e = Expressions(rng)
    source = f"SELECT id + 200, pname, age FROM {PEOPLE} JOIN {ORDERS} ON pid = id"
    if rng.random() < 0.5:
        source = f"SELECT id + 300, name, qty FROM {ORDERS} WHERE {e.condition(1)}"
    return Statement(f"INSERT INTO {ORDERS} (id, name, qty) {source}", is_write=True)


def _update(rng: Random) -> Statement:
    tail = rng.choice(("", "", f" ORDER BY id{rng.choice(('', ' DESC'))} LIMIT 2"))
    e = Expressions(rng, text_number="qty" if tail else "code")
    change = rng.choice(
        (
            "qty = qty + 1", "price = price * 1.1", "name = UPPER(name)", "weight = weight / 3",
            "qty = IFNULL(qty, 0), note = 'seen'", "price = ROUND(price, 0), name = 'Same'",
            "made_on = DATE_ADD(made_on, INTERVAL 1 MONTH)", "name = NULL", "qty = '17'",
            "note = CONCAT(LEFT(note, 5), id)", "qty = CASE WHEN qty > 5 THEN 5 ELSE qty END",
        )
    )  # fmt: skip
    return Statement(f"UPDATE {ORDERS} SET {change} WHERE {e.condition(1)}{tail}", is_write=True)


def _rows_compared(rng: Random) -> Statement:
    e = Expressions(rng)
    first, second = rng.choice((("qty", "person_id"), ("name", "qty"), ("made_on", "id")))
    if first == "made_on":
        rows = "('2023-02-28', 1), ('2022-01-31', 2)"
    else:
        rows = "(1, 2), (3, 4), (NULL, 1)" if first == "qty" else "('apple', 3), ('KIWI', 7)"
    query = f"SELECT {first}, MAX({second}) FROM {ORDERS} GROUP BY {first}"
    others = rng.choice(
        (rows, query, query, f"SELECT {first}, {second} FROM {ORDERS} WHERE id < 4")
    )
    negation = rng.choice(("", "", "NOT "))
    condition = f"({first}, {second}) {negation}IN ({others})"
    return Statement(f"SELECT id, {e.text(1)} FROM {ORDERS} WHERE {condition}")


def _keys(rng: Random) -> Statement:
    keys = rng.choice(
        (
            "id INT PRIMARY KEY, name VARCHAR(20) UNIQUE, qty INT NOT NULL DEFAULT 3",
            "id INT, name VARCHAR(20) NOT NULL DEFAULT 'x', qty INT, PRIMARY KEY (id, name)",
            "id INT NOT NULL UNIQUE, name VARCHAR(20), qty INT, UNIQUE KEY both_k (name, qty)",
        )
    )
    rows = ", ".join(
        f"({rng.choice((1, 2, 3, 3, 4, 5, 'NULL'))}, '{rng.choice(('Pen', 'pen', 'Cup', 'cüp'))}')"
        for _ in range(rng.randint(1, 3))
    )
    change = rng.choice(
        (
            "INSERT INTO keyed (id) VALUES (9)",
            "INSERT INTO keyed (name, id) VALUES ('Pen ', 7)",
            "INSERT INTO keyed VALUES (8, NULL, NULL)",
            f"INSERT INTO keyed (id, name) SELECT id, name FROM {ORDERS}",
            "DELETE FROM keyed WHERE id > 2",
            f"UPDATE keyed k JOIN {PEOPLE} p ON k.id = p.pid SET k.qty = p.age",
        )
    )
    sql = f"CREATE TABLE keyed ({keys}); INSERT INTO keyed (id, name) VALUES {rows}; {change}"
    return Statement(f"{sql}; SELECT * FROM keyed", is_write=True)


def _update_join(rng: Random) -> Statement:
    e = Expressions(rng, "o.")
    change = rng.choice(
        ("o.qty = p.age", "o.name = p.pname", "o.note = 'joined', o.qty = o.qty * 2")
    )
    join = rng.choice(("JOIN", "JOIN", "LEFT JOIN", "INNER JOIN"))
    sql = f"UPDATE {ORDERS} o {join} {PEOPLE} p ON o.person_id = p.pid SET {change}"
    if rng.random() < 0.2:
        sql = f"UPDATE {ORDERS} o, {PEOPLE} p SET {change}"
        return Statement(f"{sql} WHERE o.person_id = p.pid AND {e.condition(0)}", is_write=True)
    return Statement(f"{sql} WHERE {e.condition(0)}", is_write=True)


def _delete(rng: Random) -> Statement:
    e = Expressions(rng, text_number="qty")
    tail = rng.choice(("", " ORDER BY id DESC LIMIT 1"))
    return Statement(f"DELETE FROM {ORDERS} WHERE {e.condition(1)}{tail}", is_write=True)


def _delete_join(rng: Random) -> Statement:
    sql = f"DELETE o FROM {ORDERS} o {rng.choice(('JOIN', 'LEFT JOIN'))} {PEOPLE} p"
    condition = rng.choice(
        ("p.age > 40", "p.pid IS NULL", "p.pname LIKE 'a%'", "o.qty > p.age / 3")
    )
    return Statement(f"{sql} ON o.person_id = p.pid WHERE {condition}", is_write=True)
