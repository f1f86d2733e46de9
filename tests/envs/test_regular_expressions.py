"""MySQL 8's regular expressions, by RE2: results and errors as the manual and ICU have them."""

import subprocess
import sys

import pytest
from translated_mysql import TranslatedMySQL


@pytest.fixture(scope="module")
def mysql() -> TranslatedMySQL:
    return TranslatedMySQL()


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("'Abc' REGEXP 'aBC'", 1),
        ("'Abc' REGEXP BINARY 'abc'", 0),
        ("BINARY 'Abc' RLIKE 'bc$'", 1),
        ("'Abc' NOT REGEXP '^b'", 1),
        ("NULL REGEXP 'a'", None),
        ("'a' REGEXP NULL", None),
        ("123 REGEXP '^[0-9]+$'", 1),
        ("'Éve' REGEXP '^é'", 1),
        ("'Éve' REGEXP '^e'", 0),
        ("'fo\\no' REGEXP 'fo.o'", 0),
        ("REGEXP_LIKE('fo\\no', 'fo.o', 'n')", 1),
        ("REGEXP_LIKE('abc\\ndef', '^def$')", 0),
        ("REGEXP_LIKE('abc\\ndef', '^def$', 'm')", 1),
        ("REGEXP_LIKE('abc\\n', 'c$')", 1),
        ("REGEXP_LIKE('Abc', 'abc', 'c')", 0),
        ("REGEXP_LIKE('Abc', 'abc', 'ci')", 1),
        ("REGEXP_LIKE('Abc', 'abc', 'ic')", 0),
        ("REGEXP_LIKE('Abc', 'abc', NULL)", None),
        ("'a b' REGEXP 'a[[:space:]]b'", 1),
        ("'é' REGEXP '^[[:alpha:]]$'", 1),
        ("'x1' REGEXP '^[[:alnum:]]{2}$'", 1),
        ("'a-b' REGEXP '[^[:alnum:]]'", 1),
        ("'a.b' REGEXP '[[:punct:]]'", 1),
        ("'a word here' REGEXP '[[:<:]]word[[:>:]]'", 1),
        ("'swordfish' REGEXP '[[:<:]]word[[:>:]]'", 0),
        ("'a word' REGEXP '\\\\bword\\\\b'", 1),
        ("'é9' REGEXP '^\\\\w\\\\d$'", 1),
        ("'٣' REGEXP '^\\\\d$'", 1),
        ("'a,b' REGEXP '^[\\\\w]\\\\W[\\\\w]$'", 1),
        ("'é,b' REGEXP '^[^\\\\W][\\\\W][^,]$'", 1),
        ("'a.c' REGEXP '^\\\\Qa.c\\\\E$'", 1),
        ("'abc' REGEXP '^\\\\Qa.c\\\\E$'", 0),
        ("'a.c' REGEXP 'a\\\\.c'", 1),
        ("'a_c' REGEXP 'a\\\\_c'", 1),
        ("'é' REGEXP '^\\\\u00e9$'", 1),
        ("'aXb' REGEXP '(?#a comment)a(?:x)b'", 1),
        ("'aXb' REGEXP '(?-i)axb'", 0),
        ("'aaa' REGEXP '^a{2,3}$'", 1),
        ("'a]b' REGEXP '[]x]'", 1),
        ("'a\\nb' REGEXP 'a\\\\Rb'", 1),
        ("'ß' REGEXP '\\\\p{L}'", 1),
        ("REGEXP_REPLACE('a1b22', '[0-9]+', '#')", "a#b#"),
        ("REGEXP_REPLACE('abc', 'x*', '-')", "-a-b-c-"),
        ("REGEXP_REPLACE('baac', 'a*', '-')", "-b--c-"),
        ("REGEXP_REPLACE('abc', '(a)(b)', '$2$1')", "bac"),
        ("REGEXP_REPLACE('abc', '(b)', '$10')", "ab0c"),
        ("REGEXP_REPLACE('abc', 'b', '\\\\$')", "a$c"),
        ("REGEXP_REPLACE('a b c', ' ', '', 3)", "a bc"),
        ("REGEXP_REPLACE('a b c', '[a-z]', 'X', 1, 2)", "a X c"),
        ("REGEXP_REPLACE('Aa', 'a', 'x', 1, 0, 'c')", "Ax"),
        ("REGEXP_REPLACE('éaé', 'é', 'e')", "eae"),
        ("REGEXP_SUBSTR('abc def ghi', '[a-z]+')", "abc"),
        ("REGEXP_SUBSTR('abc def ghi', '[a-z]+', 1, 3)", "ghi"),
        ("REGEXP_SUBSTR('abc', 'x')", None),
        ("REGEXP_INSTR('dog cat dog', 'dog')", 1),
        ("REGEXP_INSTR('dog cat dog', 'dog', 2)", 9),
        ("REGEXP_INSTR('aa aaa aaaa', 'a{4}')", 8),
        ("REGEXP_INSTR('dog cat dog', 'dog', 1, 2, 1)", 12),
        ("REGEXP_INSTR('éé a', 'a')", 4),
    ],
)
def test_results_are_mysqls(mysql: TranslatedMySQL, expression: str, value: object) -> None:
    assert mysql.rows(f"SELECT {expression}") == [(value,)]


@pytest.mark.parametrize(
    ("pattern", "number"),
    [
        ("", 3685),
        ("[[:foo:]]", 3685),
        ("*a", 3688),
        ("a**", 3688),
        ("\\\\y", 3689),
        ("\\\\C", 3689),
        ("a\\\\", 3689),
        ("(a)\\\\1", 3690),
        ("(?<n>a)\\\\k<n>", 3690),
        ("a(?=b)", 3690),
        ("a(?!b)", 3690),
        ("(?<=a)b", 3690),
        ("(?<!a)b", 3690),
        ("(?>a)b", 3690),
        ("(?x)a b", 3690),
        ("a++b", 3690),
        ("a{2}+b", 3690),
        ("[a-z&&[aeiou]]", 3690),
        ("[a-z--[aeiou]]", 3690),
        ("(a", 3691),
        ("a)", 3691),
        ("a{,5}", 3692),
        ("a{", 3692),
        ("a{x}", 3692),
        ("a{3,1}", 3693),
        ("[a", 3696),
        ("[z-a]", 3697),
        ("a{1001}", 3700),
        ("(a{900}){900}", 3700),
        ("(([\\\\p{L}]{1,30}){1,30}){30}", 3700),
        ("a" * 1001, 3700),
    ],
)
def test_errors_are_mysqls(mysql: TranslatedMySQL, pattern: str, number: int) -> None:
    assert mysql.error(f"SELECT 'é' REGEXP '{pattern}'").startswith(f"{number} (HY000): ")


@pytest.mark.parametrize(
    ("expression", "number"),
    [
        ("REGEXP_LIKE('a', 'a', 'x')", 1210),
        ("REGEXP_LIKE('a')", 1582),
        ("REGEXP_SUBSTR('a', 'a', 1, 1, 'c', 2)", 1582),
        ("REGEXP_SUBSTR('a', 'a', 5)", 3686),
        ("REGEXP_REPLACE('a', 'a', '$1')", 3686),
    ],
)
def test_wrong_arguments_are_mysqls_errors(
    mysql: TranslatedMySQL, expression: str, number: int
) -> None:
    assert mysql.error(f"SELECT {expression}").startswith(str(number))


WITHOUT_RE2 = """
import sys
sys.modules["re2"] = None
from agentpeft.envs.db_bench.backends.protocol import DatabaseLimits
from agentpeft.envs.db_bench.backends.sqlite.database import SqliteDatabase
session = SqliteDatabase(DatabaseLimits()).open([])
print(session.execute("SELECT 'a' LIKE 'A'").rows)
print(session.execute("SELECT 'a' REGEXP 'a'").error)
"""


def test_without_the_library_only_regular_expressions_are_missing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_RE2], capture_output=True, text=True, check=True
    )
    first, second = done.stdout.splitlines()
    assert first == "((1,),)"
    assert second.startswith("3687 (HY000): ")
    assert "google-re2" in second
