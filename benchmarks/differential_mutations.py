"""Statements changed at random, word by word: what a model writes that has not quite learnt SQL.

A word goes, comes twice, changes place with its neighbour, or is replaced by one of the vocabulary:
clauses, operators, functions with their arguments, literals of every kind, and other dialects'.
"""

import re
from dataclasses import replace
from random import Random

from differential_expressions import NUMBERS, TEXTS
from differential_statements import Statement

_WORD = re.compile(r"'(?:[^']|'')*'|\"[^\"]*\"|`[^`]*`|\w+(?:\.\w+)?|<=>|[<>!]=|<>|\|\||&&|[^\s\w]")
_CLAUSES_TEXT = """
SELECT FROM WHERE GROUP_BY HAVING ORDER_BY LIMIT OFFSET DISTINCT ASC DESC AND OR NOT IN IS NULL
TRUE FALSE LIKE BETWEEN EXISTS AS JOIN LEFT_JOIN ON UNION UNION_ALL CASE END INTERVAL ALL ANY
WITH OVER PARTITION_BY NULLS_LAST FULL_JOIN CROSS_JOIN USING FOR_UPDATE XOR REGEXP ESCAPE DIV
MOD BINARY COLLATE RETURNING TOP QUALIFY FETCH_FIRST ILIKE EXCEPT INTERSECT
"""
_CLAUSES = _CLAUSES_TEXT.split()
_OPERATORS_TEXT = """
= <> < > <= >= <=> + - * / % || && ! , ( ) ; . :: -> & | ^ ~ == := @ ?
"""
_OPERATORS = _OPERATORS_TEXT.split()
_LITERALS = (
    "0", "1", "-1", "2.5", "1e1", "1e400", ".5", "007", "'12'", "'3 apples'", "''", "' 7 '", "'é'",
    "'2023-02-28'", "'2023-02-30'", "20230228", "'10:11:12'", "DATE '2023-03-01'", "NULL", "x'41'",
    "9223372036854775807", "99999999999999999999", "123456789.123456789", "'%a_'", "TRUE", "0.1",
)  # fmt: skip
_FUNCTIONS = """
UPPER({}); LOWER({}); LENGTH({}); CHAR_LENGTH({}); ABS({}); ROUND({}); ROUND({},1);
FLOOR({}); CEIL({}); YEAR({}); MONTH({}); DAY({}); DATE({}); HOUR({}); QUARTER({});
DAYNAME({}); LAST_DAY({}); WEEKDAY({}); CONCAT({},{}); LEFT({},2); RIGHT({},{});
SUBSTRING({},{}); SUBSTRING({},2,3); REPLACE({},'a','b'); TRIM({}); LPAD({},5,'x');
REVERSE({}); REPEAT({},2); LOCATE('a',{}); INSTR({},{}); SIGN({}); SQRT({}); POW({},2);
MOD({},{}); TRUNCATE({},1); FORMAT({},2); GREATEST({},{}); LEAST({},{}); IFNULL({},{});
COALESCE({},{},1); NULLIF({},{}); IF({},{},{}); ISNULL({}); FIELD({},{},{});
DATEDIFF({},{}); TIMESTAMPDIFF(DAY,{},{}); DATE_FORMAT({},'%Y-%m'); CAST({} AS SIGNED);
CAST({} AS CHAR); CAST({} AS DECIMAL(10,2)); CAST({} AS DATE); CAST({} AS CHAR(3));
COUNT({}); SUM({}); AVG({}); MIN({}); MAX({}); COUNT(DISTINCT {}); STDDEV({});
GROUP_CONCAT({}); CONV({},10,2); STR_TO_DATE({},'%Y'); ({} IS NULL); ({} IN ({},{}));
({} BETWEEN {} AND {}); (NOT {}); (-{}); ({} LIKE {}); ({} = {}); ({} + {}); ({} - {});
({} * {}); ({} / {}); ({} DIV {}); ({} % {}); ({} AND {}); ({} OR {});
COUNT(*) OVER (ORDER BY id); SUM({}) OVER (PARTITION BY qty); RANK() OVER (ORDER BY {}));
({}, {}) = ({}, {}); ({}, {}) IN (({}, {}), ({}, {})); ({}, {}) <> ({}, {});
DATE_ADD({}, INTERVAL {} DAY); DATE_SUB({}, INTERVAL 2 MONTH); {} + INTERVAL 1 YEAR;
{} - INTERVAL {} HOUR; INTERVAL 3 WEEK + {}; ADDDATE({}, INTERVAL {} QUARTER);
DATE_FORMAT({},'%d.%m.%y %H:%i'); DATE_FORMAT({},'%M %D, %W'); DATE_FORMAT({},'%b %e %j %p');
DATE_FORMAT({},{}); STR_TO_DATE({},'%Y-%m-%d'); TIMESTAMPDIFF(MONTH,{},{}); SECOND({});
TIMESTAMPDIFF(HOUR,{},{}); MINUTE({}); MONTHNAME({}); DAYOFWEEK({}); DAYOFYEAR({});
EXTRACT(YEAR FROM {}); EXTRACT(MONTH FROM {}); CAST({} AS DATETIME); CAST({} AS UNSIGNED);
GROUP_CONCAT({} ORDER BY id); GROUP_CONCAT({} ORDER BY {} DESC, id SEPARATOR ' / ');
GROUP_CONCAT(DISTINCT {} ORDER BY {}); GROUP_CONCAT({}, '-', {} ORDER BY id);
COUNT(DISTINCT {}, {}); MIN({}) OVER (PARTITION BY {}); AVG({}) OVER (ORDER BY id);
DENSE_RANK() OVER (ORDER BY {}); LEAD({}) OVER (ORDER BY id); LAG({}, 2) OVER (ORDER BY id);
TRIM(LEADING {} FROM {}); TRIM(BOTH 'a' FROM {}); CONCAT_WS({},{},{}); RPAD({},{},{});
SUBSTRING_INDEX({},{},{}); POSITION({} IN {}); ASCII({}); LTRIM({}); RTRIM({});
CASE WHEN {} THEN {} ELSE {} END; CASE {} WHEN {} THEN {} WHEN {} THEN {} END;
({} NOT IN ({},{},{})); ({} NOT LIKE {}); ({} REGEXP '^[a-c]'); ({} <=> {}); ({} < {});
ANY_VALUE({}); SUM(DISTINCT {}); (SELECT MAX({}) FROM people_t); MOD({},3); {} IS NOT NULL;
)\n\n
""".replace("\n", " ").split(";")
_MAX_CHANGES = 3
_TIES = re.compile(r"ROW_NUMBER\(\)|LAG\(qty\)")
"""What depends on the order of equal rows, which no server promises."""


def mutate(statement: Statement, rng: Random) -> Statement:
    """Returns a statement with one to three words changed."""
    words = _WORD.findall(_TIES.sub("RANK()", statement.sql))
    for _ in range(rng.randint(1, _MAX_CHANGES)):
        place = rng.randrange(len(words))
        change = rng.random()
        if change < 0.15:
            del words[place]
        elif change < 0.25:
            words.insert(place, words[place])
        elif change < 0.35 and place:
            words[place - 1], words[place] = words[place], words[place - 1]
        elif change < 0.5:
            words.insert(place, _pick_word(rng, words))
        elif change < 0.65:
            words[place] = _pick_word(rng, words)
        else:
            _change_operand(words, rng)
        if not words:
            return statement
    sql = " ".join(words).replace(" (", "(").replace("( ", "(").replace(" . ", ".")
    return replace(statement, sql=sql, is_ordered=False)


def _pick_word(rng: Random, words: list[str]) -> str:
    columns = (*NUMBERS, *TEXTS, "made_on")
    vocabulary = rng.choice((_CLAUSES, _OPERATORS, _LITERALS, columns, words))
    word = rng.choice(vocabulary)
    return word.replace("_", " ") if vocabulary is _CLAUSES else word


def _change_operand(words: list[str], rng: Random) -> None:
    """Puts a column or a literal into a function or an operator, or another one in its place."""
    places = [i for i, word in enumerate(words) if _is_operand(word)]
    if not places:
        return
    place = rng.choice(places)
    operands = [words[place], *_LITERALS, *NUMBERS, *TEXTS, "made_on"]
    if rng.random() < 0.3:
        words[place] = rng.choice(operands)
        return
    first, *rest = rng.choice(_FUNCTIONS).strip().split("{}")
    filled = [first]
    for index, part in enumerate(rest):
        filled += [words[place] if index == 0 else rng.choice(operands), part]
    words[place] = "".join(filled)


def _is_operand(word: str) -> bool:
    name = word.rpartition(".")[2]
    return name in (*NUMBERS, *TEXTS, "made_on") or word[0] in "'0123456789"
