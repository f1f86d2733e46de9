"""SQL that takes time, memory, disk or the parser's depth."""

from attack import Topic, Try

TIME = Topic(
    "sql",
    "time",
    "statements and functions that hardly end, or many that add up",
    {
        "sqlite": "a deadline that every function looks at; what may take long in C runs in a worker process that is killed",
        "server": "a watchdog kills the statement from an administrator's connection",
    },
)
MEMORY = Topic(
    "sql",
    "memory and size",
    "huge values, rows, results, tables, variables",
    {
        "sqlite": "SQLite's limits of length and pages; 256 MiB heap in the worker; results are cut",
        "server": "the size of the schema is polled; results are cut and the statement killed; in "
        "docker also the container's limits",
    },
)
PARSER = Topic(
    "sql",
    "parser",
    "statements that are long, deep, wide or half a statement",
    {
        "sqlite": "at most 20,000 characters and 60 levels; growth of translated text is bounded",
        "server": "at most 20,000 characters; what multiplies by nesting is not sent; the server's own "
        "thread stack and packet limits",
    },
)
_WIDE = "REPEAT('xy', 50000)"
_CROSS = "n a, n b, n c, n d, n e"
_DOUBLING = "WITH c0 AS (SELECT 1 AS x), " + ", ".join(
    f"c{i} AS (SELECT a.x AS x FROM c{i - 1} a, c{i - 1} b)" for i in range(1, 30)
)
_RECURSE = "WITH RECURSIVE r AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM r)"
_BACKTRACK = "REPEAT('a', 40)"

ATTACKS = [
    *TIME.entries(
        {
            "sleep": "SELECT SLEEP(100)",
            "sleep in a condition": "SELECT * FROM n WHERE SLEEP(1)",
            "sleep for each row": "SELECT SUM(SLEEP(0.05)) FROM n",
            "sleep of a negative number": "SELECT SLEEP(-1)",
            "sleep of NULL": "SELECT SLEEP(NULL)",
            "sleep of text": "SELECT SLEEP('99999999999')",
            "sleep in an insert": "INSERT INTO n SELECT SLEEP(30)",
            "sleep in an update": "UPDATE n SET a = SLEEP(30)",
            "sleep in a delete": "DELETE FROM n WHERE SLEEP(30) = 0",
            "sleep in a subquery": "SELECT (SELECT SLEEP(30))",
            "sleep in an order": "SELECT a FROM n ORDER BY SLEEP(1)",
            "sleep in a group": "SELECT COUNT(*) FROM n GROUP BY SLEEP(1)",
            "sleep in a limit": "SELECT a FROM n LIMIT 1 OFFSET 0; SELECT SLEEP(30)",
            "many short sleeps": "SELECT SLEEP(0.05);" * 300,
            "do sleep": "DO SLEEP(0.7); DO SLEEP(0.7); DO SLEEP(0.7); DO SLEEP(0.7)",
            "benchmark": "SELECT BENCHMARK(1000000000000, MD5('a'))",
            "benchmark in a default": "CREATE TABLE t (a INT DEFAULT (BENCHMARK(1e12, MD5('a'))));"
            " INSERT INTO t VALUES ()",
            "cross join": f"SELECT COUNT(*) FROM {_CROSS}",
            "cross join of conditions": f"SELECT COUNT(*) FROM {_CROSS} WHERE a.a + b.a = c.a * d.a",
            "cross join into a table": f"CREATE TABLE t AS SELECT a.a FROM {_CROSS}",
            "cross join in an insert": f"INSERT INTO n SELECT a.a FROM {_CROSS}",
            "cross join in a delete": f"DELETE FROM n WHERE a IN (SELECT a.a FROM {_CROSS})",
            "cross join under distinct": f"SELECT DISTINCT a.a + b.a + c.a + d.a FROM {_CROSS}",
            "cross join that is sorted": f"SELECT a.a FROM {_CROSS} ORDER BY RAND()",
            "cross join that exists": f"SELECT EXISTS (SELECT 1 FROM {_CROSS} WHERE a.a < 0)",
            "cross join of windows": f"SELECT SUM(a.a) OVER (ORDER BY b.a) FROM {_CROSS}",
            "cross join by a union": f"SELECT 1 UNION SELECT a.a FROM {_CROSS}",
            "recursion without an end": f"{_RECURSE} SELECT COUNT(*) FROM r",
            "recursion that is limited": f"{_RECURSE} SELECT x FROM r LIMIT 3",
            "recursion of two": "WITH RECURSIVE r AS (SELECT 1 AS x UNION ALL SELECT a.x FROM r a) "
            "SELECT SUM(x) FROM r",
            "recursion that doubles": "WITH RECURSIVE r AS (SELECT 'x' AS x UNION ALL "
            "SELECT CONCAT(x, x) FROM r) SELECT COUNT(*) FROM r",
            "doubling without recursion": f"{_DOUBLING} SELECT COUNT(*) FROM c29",
            "regular expression": f"SELECT CONCAT({_BACKTRACK}, 'b') REGEXP '^(a+)+$'",
            "regular expression by rlike": f"SELECT CONCAT({_BACKTRACK}, 'b') RLIKE '^(a|a)*$'",
            "regular expression that replaces": f"SELECT REGEXP_REPLACE(CONCAT({_BACKTRACK}, 'b'), "
            "'^(a|aa)+$', 'x')",
            "regular expression that extracts": f"SELECT REGEXP_SUBSTR(CONCAT({_BACKTRACK}, 'b'), "
            "'^(([a-z])+.)+[A-Z]$')",
            "regular expression that places": f"SELECT REGEXP_INSTR(CONCAT({_BACKTRACK}, 'b'), "
            "'(x+x+)+y|^(a?){40}a{40}$')",
            "regular expression in a definition": "CREATE TABLE z AS SELECT "
            "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab' REGEXP '^(a+)+$' AS a",
            "regular expression in a default": "CREATE TABLE z (a INT DEFAULT "
            "('aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab' REGEXP '^(a+)+$'), b INT);"
            "INSERT INTO z (b) VALUES (1)",
            "regular expression of a key": "CREATE TABLE k (a INT PRIMARY KEY, b INT);"
            "INSERT INTO k VALUES (1, 1); INSERT INTO k SELECT 1, CASE WHEN RAND() < 0.5 THEN "
            "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab' REGEXP '^(a+)+$' ELSE 0 END",
            "regular expression of nested counts": "SELECT REPEAT('a', 99) REGEXP '((a{9}){9}){9}b'",
            "like of many wildcards": "SELECT SUM(CONCAT(REPEAT('x', 15990), a) LIKE "
            "CONCAT('%', REPEAT('x_', 4000), 'c%')) FROM n",
            "like of a wide text": f"SELECT {_WIDE} LIKE CONCAT('%', REPEAT('x_', 25000), 'c%')",
            "find in a set": "SELECT SUM(FIND_IN_SET('y', REPEAT('x,', 50000))) FROM n",
            "substring index": f"SELECT SUM(SUBSTRING_INDEX({_WIDE}, 'x', -99999) IS NULL) FROM n",
            "comparison of wide texts": f"SELECT COUNT(*) FROM n WHERE CONCAT({_WIDE}, a) = "
            f"CONCAT({_WIDE}, 'é')",
            "locate of a wide text": "SELECT SUM(LOCATE(CONCAT(REPEAT('a', 20000), 'b'), "
            "REPEAT('a', 60000))) FROM n",
            "soundex of wide texts": f"SELECT MAX(SOUNDEX(CONCAT({_WIDE}, a))) FROM n",
            "hashes of wide texts": f"SELECT MAX(SHA2(CONCAT({_WIDE}, a.a, b.a), 512)) FROM n a, n b",
            "compression": f"SELECT MAX(LENGTH(COMPRESS(CONCAT({_WIDE}, a.a)))) FROM n a, n b",
            "inequalities of a subquery": "SELECT COUNT(*) FROM n x WHERE (SELECT COUNT(*) FROM n y, "
            "n z WHERE y.a * z.a > x.a) > 1",
            "sort of wide rows": f"SELECT LENGTH(x) FROM (SELECT CONCAT({_WIDE}, a.a, b.a) AS x FROM "
            "n a, n b) t ORDER BY x LIMIT 1",
            "lock that another holds": "SELECT GET_LOCK('a', 100)",
            "wait for a position": "SELECT MASTER_POS_WAIT('x', 1, 100)",
            "time limit that is lifted": "SET SESSION max_statement_time = 0; SELECT SLEEP(100)",
            "time limit that is lifted in MySQL's words": "SET max_execution_time = 0; "
            "SELECT /*+ MAX_EXECUTION_TIME(0) */ SLEEP(100)",
            "statement of its own limit": "SET STATEMENT max_statement_time = 99 FOR SELECT SLEEP(99)",
            "ten thousand statements": "SELECT 1;" * 2000,
            "format of a large number": "SELECT MAX(FORMAT(POW(10, 300) + a, 30)) FROM n",
            "generated column of a search": "ALTER TABLE pets ADD COLUMN z INT AS (LOCATE(CONCAT("
            "REPEAT('a', 100000), 'b'), REPEAT('a', 300000))) VIRTUAL",
        }
    ),
    *MEMORY.entries(
        {
            "repeat": "SELECT LENGTH(REPEAT('x', 4000000000))",
            "repeat of a repeat": "SELECT LENGTH(REPEAT(REPEAT('x', 60000), 60000))",
            "space": "SELECT LENGTH(SPACE(4000000000))",
            "padding": "SELECT LENGTH(LPAD('x', 4000000000, 'y'))",
            "padding on the right": "SELECT LENGTH(RPAD('x', 2000000000, 'yz'))",
            "replacement": "SELECT LENGTH(REPLACE(REPEAT('x', 60000), 'x', REPEAT('y', 60000)))",
            "hex": "SELECT LENGTH(HEX(REPEAT('x', 4000000000)))",
            "quote": "SELECT LENGTH(QUOTE(REPEAT('\\'', 10000000)))",
            "insert into a text": "SELECT LENGTH(INSERT('x', 1, 1, REPEAT('y', 400000000)))",
            "concatenation that doubles": "SELECT LENGTH(@a) FROM (SELECT @a := 'xx') t; "
            + "SET @a = CONCAT(@a, @a); " * 40
            + "SELECT LENGTH(@a)",
            "many large variables": "".join(
                f"SET @v{i} = REPEAT('x', 500000);" for i in range(100)
            ),
            "group concatenation": "SET group_concat_max_len = 4294967295; "
            "SELECT LENGTH(GROUP_CONCAT(REPEAT('x', 50000))) FROM n a, n b",
            "group concatenation of one row": "SELECT LENGTH(GROUP_CONCAT(REPEAT('x', 90000000)))",
            "json array": "SELECT LENGTH(JSON_ARRAYAGG(REPEAT('x', 60000))) FROM n a, n b",
            "json nesting": "SELECT JSON_DEPTH(CONCAT(REPEAT('[', 50000), REPEAT(']', 50000)))",
            "result of wide rows": "SELECT REPEAT('a', 1000000) FROM n",
            "result of many rows": "SELECT a.a FROM n a, n b, n c",
            "result of a sequence": "SELECT * FROM seq_1_to_1000000000",
            "result of many columns": "SELECT " + ", ".join(["a.*"] * 900) + " FROM pets a, n",
            "result of one wide value": "SELECT REPEAT('é', 300000)",
            "table of a recursion": f"CREATE TABLE t AS {_RECURSE} SELECT x FROM r",
            "table of wide texts": "CREATE TABLE t (a LONGTEXT); INSERT INTO t SELECT "
            "REPEAT('x', 60000) FROM n",
            "table of wide binaries": "CREATE TABLE t (a LONGBLOB); INSERT INTO t SELECT "
            "REPEAT('x', 60000) FROM n a, n b",
            "table that doubles": "CREATE TABLE t AS SELECT a FROM n; "
            + "INSERT INTO t SELECT a FROM t; " * 18,
            "update that widens": "ALTER TABLE n ADD COLUMN t LONGTEXT; "
            "UPDATE n SET t = REPEAT('x', 60000)",
            "default that widens": "ALTER TABLE n ADD COLUMN t VARCHAR(10000) DEFAULT 'x'; "
            "ALTER TABLE n ALTER COLUMN t SET DEFAULT 'yy'; INSERT INTO n (a) SELECT a FROM n",
            "upsert that widens": "CREATE TABLE t (a INT PRIMARY KEY, b LONGTEXT); INSERT INTO t "
            "VALUES (1, 'x');"
            + "INSERT INTO t VALUES (1, '') ON DUPLICATE KEY UPDATE b = CONCAT(b, b, b);"
            * 20,
            "many tables": "".join(f"CREATE TABLE t{i} (a INT);" for i in range(300)),
            "many indexes": "".join(f"CREATE INDEX i{i} ON n (a);" for i in range(70)),
            "many columns": "CREATE TABLE t (" + ", ".join(f"c{i} INT" for i in range(1500)) + ")",
            "wide columns": "CREATE TABLE t ("
            + ", ".join(f"c{i} VARCHAR(16000)" for i in range(60))
            + ")",
            "an undo log that grows": "START TRANSACTION; " + "UPDATE n SET a = a + 1; " * 300,
            "a transaction of many savepoints": "START TRANSACTION; "
            + "".join(f"SAVEPOINT s{i};" for i in range(600)),
            "random bytes": "CREATE TABLE t (a LONGBLOB); INSERT INTO t SELECT RANDOM_BYTES(1024) "
            "FROM n a, n b",
            "sort buffer": "SET sort_buffer_size = 4294967295; SELECT a FROM n ORDER BY RAND()",
            "temporary table size": "SET tmp_table_size = 18446744073709551615; "
            "SET max_heap_table_size = 18446744073709551615; SELECT COUNT(DISTINCT a.a, b.a) FROM n a, n b",
            "auto increment at its end": "CREATE TABLE t (a INT AUTO_INCREMENT PRIMARY KEY); "
            "INSERT INTO t VALUES (2147483647); INSERT INTO t VALUES (NULL)",
            "a power without end": "SELECT POW(POW(9, 99), 99), EXP(10000), 1e308 * 10",
            "an integer of a thousand digits": f"SELECT {'9' * 1000} + 1",
            "a decimal of a thousand digits": f"SELECT 0.{'1' * 1000} * 3",
        }
    ),
    *PARSER.entries(
        {
            "too long a statement": Try(f"SELECT {'1 + ' * 6000} 1", is_refused=True),
            "too long a comment": Try(f"SELECT 1 /*{'x' * 25000}*/", is_refused=True),
            "too long a text": Try(f"SELECT LENGTH('{'x' * 25000}')", is_refused=True),
            "brackets": f"SELECT {'(' * 2000}1{')' * 2000}",
            "brackets without an end": Try(f"SELECT {'(' * 5000}", is_refused=True),
            "brackets of queries": f"SELECT {'(SELECT ' * 500}1{')' * 500}",
            "derived tables": f"{'SELECT * FROM (' * 200}SELECT 1{') t' * 200}",
            "negations": f"SELECT {'NOT ' * 4000}1",
            "minus signs": f"SELECT {'- ' * 5000}1",
            "tildes": f"SELECT {'~' * 9000}1",
            "cases": f"SELECT {'CASE WHEN 1 THEN ' * 400}1{' END' * 400}",
            "calls": f"SELECT {'ABS(' * 3000}1{')' * 3000}",
            "conjunctions": f"SELECT {'1 AND ' * 3000}1",
            "alternatives": f"SELECT {'a OR ' * 3000}a FROM n LIMIT 1",
            "concatenations": f"SELECT {'a || ' * 3000}a FROM n LIMIT 1",
            "unions": f"{'SELECT 1 UNION ' * 900}SELECT 1",
            "unions of all": f"{'SELECT a FROM n UNION ALL ' * 600}SELECT 1",
            "joins": "SELECT 1 FROM " + " JOIN ".join(f"n a{i}" for i in range(100)),
            "joins on conditions": "SELECT 1 FROM n a0 "
            + " ".join(f"JOIN n a{i} ON a{i}.a = a{i - 1}.a" for i in range(1, 70)),
            "a list of values": f"SELECT a IN ({'1,' * 8000}1) FROM n LIMIT 1",
            "rows of an insert": f"INSERT INTO n VALUES {'(1),' * 4500}(1)",
            "copied operands": f"SELECT {'(' * 40} age {' IN (name, age, 1))' * 40} FROM pets",
            "copied operands of null if": f"SELECT {'NULLIF(' * 40}age{', name)' * 40} FROM pets",
            "copied operands without brackets": f"DELETE FROM pets WHERE age{' IN (name, age, 1)' * 300}",
            "copied operands of a case": f"SELECT {'CASE ' * 40}age{' WHEN name THEN 1 WHEN 1 THEN 2 END' * 40} FROM pets",
            "copied operands of any": f"SELECT {'(' * 40}age{' > ANY (SELECT a FROM n))' * 40} FROM pets",
            "copied columns": f"{'SELECT x + x AS x FROM (' * 60}SELECT age AS x FROM pets{') t' * 60}",
            "copied aliases": "SELECT age AS x0, "
            + ", ".join(f"(SELECT x{i} + x{i}) AS x{i + 1}" for i in range(40))
            + " FROM pets",
            "copied defaults": "CREATE TABLE t (c0 INT DEFAULT (1 + 1), "
            + ", ".join(
                f"c{i} INT DEFAULT (DEFAULT(c{i - 1}) - DEFAULT(c{i - 1}))" for i in range(1, 40)
            )
            + "); INSERT INTO t () VALUES ()",
            "copied common tables": "WITH c0 AS (SELECT age AS x FROM pets), "
            + ", ".join(
                f"c{i} AS (SELECT x FROM c{i - 1} UNION SELECT x FROM c{i - 1})"
                for i in range(1, 40)
            )
            + " SELECT COUNT(*) FROM c39",
            "copied operands that are executed": "EXECUTE IMMEDIATE CONCAT('SELECT ', REPEAT('NULLIF(', 40),"
            " 'age', REPEAT(', name)', 40), ' FROM pets')",
            "copied operands behind another mode": "SET sql_mode = 'NO_BACKSLASH_ESCAPES'; SELECT '\\', "
            f"{'NULLIF(' * 40}age{', name)' * 40} FROM pets -- '",
            "common tables": "WITH "
            + ", ".join(f"t{i} AS (SELECT 1)" for i in range(500))
            + " SELECT 1",
            "common tables of themselves": "WITH a AS (SELECT * FROM b), b AS (SELECT * FROM a) "
            "SELECT * FROM a",
            "columns of an order": f"SELECT a FROM n ORDER BY {'a, ' * 4000}a",
            "a name of ten thousand characters": Try(
                f"SELECT {'x' * 10000} FROM n", is_refused=True
            ),
            "an alias of ten thousand characters": f"SELECT 1 AS {'x' * 10000}",
            "a quote without an end": Try("SELECT 'x", is_refused=True),
            "a comment without an end": "SELECT 1 /* x",
            "a backtick without an end": Try("SELECT `x", is_refused=True),
            "an executable comment without an end": "SELECT 1 /*!99999 , 2",
            "executable comments within others": "SELECT 1 /*! /*! /*! + 1 */ */ */",
            "line comments alone": "-- x\n# y\n--\n",
            "semicolons alone": ";" * 5000,
            "nothing at all": " \n\t ",
            "a delimiter": "DELIMITER //\nSELECT 1//",
            "a backslash before the end": "SELECT 'a\\",
            "a null byte in a text": "SELECT 'a\0b'",
            "a null byte in a name": "SELECT a\0b FROM n",
            "a null byte after a statement": "SELECT 1\0; DROP TABLE pets",
            "surrogates": "SELECT '\ud800', '\udfff\ud800'",
            "characters beyond the plane": "SELECT '\U0001f600', '\U0010ffff', CHAR_LENGTH('\U0001f468')",
            "directions and joiners": "SELECT '\u202eabc\u2066\u200d\ufeff' AS `\u202e`",
            "fullwidth letters": "\uff33\uff25\uff2c\uff25\uff23\uff34 1",
            "spaces of other kinds": "SELECT\u00a01,\u20032,\u3000x",
            "line ends of other kinds": "SELECT 1 --x\u2028, 2\n--y\x0b\r, 3",
            "marks that combine": f"SELECT 'e{chr(0x301) * 5000}' = 'é'",
            "control characters": "SELECT '\x01\x07\x1b[2J\x7f', 1",
            "parameters": "SELECT ?, :a, %s, $1, @p, @@q, {x}",
            "hexadecimal of nothing": "SELECT 0x, x'', X'0', b'', 0b2",
            "exponents": "SELECT 1e, 1e999, 1e-999, .e1, 1.e1, 0.0e0",
            "numbers that are names": "SELECT 1a, 0xg, 1.2.3 FROM n",
            "operators in a row": "SELECT 1 <=> <=> 2, 1 !!= 2, ~-+!1, 1 -- 2",
            "casts to anything": "SELECT CAST(1 AS geometry), CAST('x' AS INT ARRAY), CONVERT(1, banana)",
            "introducers": "SELECT _latin1'\xe9', _binary'x', _utf16 x'd800', N'x', _nothing'x'",
            "intervals of anything": "SELECT NOW() + INTERVAL 99999999999 YEAR, "
            "DATE '0000-00-00' - INTERVAL 1 SECOND, NOW() + INTERVAL '1:1' HOUR_MINUTE",
            "dates beyond the calendar": "SELECT DATE_ADD('9999-12-31', INTERVAL 1 DAY), "
            "FROM_DAYS(99999999), STR_TO_DATE('99999', '%Y%j'), MAKEDATE(9999, 99999)",
            "formats of dates": f"SELECT DATE_FORMAT(NOW(), '{'%Y%' * 3000}')",
            "limits beyond numbers": "SELECT a FROM n LIMIT 99999999999999999999, -1",
            "a window of nothing": "SELECT SUM(a) OVER (ROWS BETWEEN 5 FOLLOWING AND 5 PRECEDING) FROM n",
            "frames of huge numbers": "SELECT SUM(a) OVER (ORDER BY a ROWS 9223372036854775807 "
            "PRECEDING) FROM n",
            "a cache that is filled": [
                "; ".join(f"SELECT nope{turn}_{i}" for i in range(300)) for turn in range(8)
            ],
        }
    ),
]
