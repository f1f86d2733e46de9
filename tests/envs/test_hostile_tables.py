"""Tables that an agent made hard to read: its failure, never a fault, and in a statement's time.

Every definition is followed by the task's right statement and the answer, then by an innocent
episode on the same database.
"""

import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from agentpeft.envs import DataError, Outcome, Taskset
from agentpeft.envs.db_bench.actions import answer_action, operation_action
from agentpeft.envs.db_bench.backends.opening import open_database
from agentpeft.envs.db_bench.backends.protocol import Column, DatabaseLimits, Table
from agentpeft.envs.db_bench.env import DBBenchEnv
from agentpeft.envs.db_bench.grading.grader import Grader
from agentpeft.envs.db_bench.tasks import DBBenchTask

pytestmark = pytest.mark.slow

TIMEOUT_S = 1.0
PETS = Table(
    "pets",
    (Column("name", "VARCHAR(20)"), Column("age", "INT")),
    (("Ada", 3), ("Bo", 5), ("Cy", None)),
)
GOLD = "INSERT INTO pets (name, age) VALUES ('Di', 1)"
DONE = answer_action("done")


def write_task(name: str, sql: str) -> DBBenchTask:
    return DBBenchTask(
        task_id=name, instruction="Do it.", tables=(PETS,), is_write=True, gold_sql=sql
    )


GENERATED = "ALTER TABLE pets ADD COLUMN twice INT AS (age * 2) VIRTUAL"
TASKS = Taskset([write_task("insert", GOLD), write_task("generated", GENERATED)])

EXPRESSIONS = {
    "uninterruptible": "LOCATE(CONCAT(REPEAT('a',100000),'b'), REPEAT('a',300000))",
    "large": "REPEAT('a', 16000000)",
    "larger": "LENGTH(CONCAT(REPEAT('a', 16000000), REPEAT('b', 16000000), name))",
    "overflow": "age * 9223372036854775807",
    "division": "1 / (age - 3)",
    "bad cast": "CAST(CONCAT(name, 'x') AS DATE)",
    "sleep": "SLEEP(5)",
    "lock": "GET_LOCK('pets', 100)",
    "benchmark": "BENCHMARK(1000000000, SHA2('a', 512))",
    "file": "LOAD_FILE('/etc/passwd')",
    "user": "CONCAT(CURRENT_USER(), SESSION_USER())",
    "random": "RAND()",
    "now": "NOW()",
    "variable": "@@hostname",
    "sequence": "SETVAL(s, 1)",
    "subquery": "(SELECT COUNT(*) FROM pets a, pets b)",
    "signal": "JSON_VALUE(name, '$.a')",
    "bytes": "CAST(x'ff' AS CHAR)",
    "null": "NULL",
}
PLACES = {
    "virtual": "ALTER TABLE pets ADD COLUMN z LONGTEXT AS ({}) VIRTUAL",
    "virtual int": "ALTER TABLE pets ADD COLUMN z INT AS ({}) VIRTUAL",
    "invisible": "ALTER TABLE pets ADD COLUMN z LONGTEXT AS ({}) VIRTUAL INVISIBLE",
    "stored": "ALTER TABLE pets ADD COLUMN z LONGTEXT AS ({}) STORED",
    "default": "ALTER TABLE pets ADD COLUMN z LONGTEXT DEFAULT ({})",
    "check": "ALTER TABLE pets ADD CONSTRAINT c CHECK ({} IS NOT NULL)",
    "view": "RENAME TABLE pets TO old; CREATE VIEW pets AS SELECT name, age, {} AS z FROM old",
    "select": "CREATE TABLE new AS SELECT *, {} AS z FROM pets; DROP TABLE pets; "
    "ALTER TABLE new RENAME TO pets",
}
NAMES = ", ".join(f"c{number} TINYINT" for number in range(1000))
ROWS = "INSERT INTO pets SELECT a.name, a.age FROM pets a, pets b, pets c;"
DEFINITIONS = {
    "discarded": "ALTER TABLE pets DISCARD TABLESPACE",
    "dropped": "DROP TABLE pets",
    "no schema": "EXECUTE IMMEDIATE CONCAT('DROP DATABASE ', DATABASE())",
    "renamed": "ALTER TABLE pets RENAME TO cats",
    "other case": "ALTER TABLE pets RENAME TO Pets",
    "wide": f"ALTER TABLE pets ADD COLUMN ({NAMES})",
    "widest": f"CREATE TABLE w ({NAMES.replace('TINYINT', 'TEXT')}); SELECT * FROM w",
    "many rows": ROWS * 4,
    "long row": "ALTER TABLE pets ADD COLUMN z LONGTEXT; UPDATE pets SET z = REPEAT('a', 3000000)",
    "two long": "ALTER TABLE pets ADD COLUMN y LONGTEXT, ADD COLUMN z LONGTEXT;"
    "UPDATE pets SET y = REPEAT('a', 9000000), z = REPEAT('b', 9000000)",
    "invisible": "ALTER TABLE pets MODIFY age INT INVISIBLE",
    "hidden extra": "ALTER TABLE pets ADD COLUMN z INT INVISIBLE DEFAULT 1",
    "versioned": "ALTER TABLE pets ADD SYSTEM VERSIONING",
    "versioned by column": "ALTER TABLE pets ADD COLUMN a TIMESTAMP(6) GENERATED ALWAYS AS ROW "
    "START, ADD COLUMN b TIMESTAMP(6) GENERATED ALWAYS AS ROW END, ADD PERIOD FOR SYSTEM_TIME"
    "(a, b), ADD SYSTEM VERSIONING",
    "sequence": "DROP TABLE pets; CREATE SEQUENCE pets",
    "temporary": "CREATE TEMPORARY TABLE pets (name VARCHAR(20), age INT)",
    "partitions": "ALTER TABLE pets PARTITION BY HASH (age) PARTITIONS 50",
    "discarded partition": "ALTER TABLE pets PARTITION BY HASH (age) PARTITIONS 2; "
    "ALTER TABLE pets DISCARD PARTITION p0 TABLESPACE",
    "compressed": "ALTER TABLE pets ROW_FORMAT=COMPRESSED KEY_BLOCK_SIZE=1",
    "page compressed": "ALTER TABLE pets PAGE_COMPRESSED=1",
    "encrypted": "ALTER TABLE pets ENCRYPTED=YES ENCRYPTION_KEY_ID=1",
    "encryption": "ALTER TABLE pets ENCRYPTION='Y'",
    "compressed column": "ALTER TABLE pets MODIFY name VARCHAR(20) COMPRESSED",
    "charset": "ALTER TABLE pets CONVERT TO CHARACTER SET utf32",
    "bytes": "ALTER TABLE pets MODIFY name VARBINARY(20)",
    "geometry": "ALTER TABLE pets ADD COLUMN g GEOMETRY",
    "trigger": "CREATE TRIGGER t BEFORE INSERT ON pets FOR EACH ROW SET NEW.age = SLEEP(9)",
    "event": "CREATE EVENT e ON SCHEDULE EVERY 1 SECOND DO DELETE FROM pets",
    "function": "CREATE FUNCTION f() RETURNS INT RETURN SLEEP(9)",
    "xa": "XA START 'hostile'; DELETE FROM pets; XA END 'hostile'",
    "xa prepared": "XA START 'h'; DELETE FROM pets; XA END 'h'; XA PREPARE 'h'",
    "locked rows": "BEGIN; SELECT * FROM pets FOR UPDATE; UPDATE pets SET age = 0",
    "locked table": "LOCK TABLES pets WRITE",
    "named lock": "SELECT GET_LOCK('pets', 0)",
    "flush": "FLUSH TABLES pets WITH READ LOCK",
    "handler": "HANDLER pets OPEN",
    "backup": "BACKUP LOCK pets",
    "read only": "SET SESSION TRANSACTION READ ONLY; BEGIN",
    "isolation": "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE; BEGIN; SELECT * FROM pets",
    "session": "SET sql_select_limit = 0, max_statement_time = 9, character_set_results = utf16",
    "password": "SET PASSWORD = PASSWORD('x'); KILL CONNECTION_ID()",
    "slow alter": "ALTER TABLE pets ADD COLUMN z INT DEFAULT (SLEEP(9))",
    "rows that sleep": "UPDATE pets SET age = SLEEP(9)",
    "zero dates": "SET sql_mode = ''; ALTER TABLE pets ADD COLUMN d DATE NOT NULL",
    "odd dates": "SET sql_mode = ''; ALTER TABLE pets ADD COLUMN d DATE NOT NULL "
    "DEFAULT '2020-00-31', ADD COLUMN e DATETIME NOT NULL DEFAULT '0000-01-00 23:59:59'",
    "long times": "ALTER TABLE pets ADD COLUMN t TIME DEFAULT '-838:59:59'",
    "years": "ALTER TABLE pets ADD COLUMN y YEAR DEFAULT 0, ADD COLUMN b BIT(64) DEFAULT b'1'",
    **{
        f"engine {name}": f"ALTER TABLE pets ENGINE={name}"
        for name in (
            *("MyISAM", "MEMORY", "ARCHIVE", "CSV", "BLACKHOLE", "MERGE", "FEDERATED", "CONNECT"),
            *("Aria", "S3", "SPIDER", "SEQUENCE", "SPHINX", "OQGRAPH", "ROCKSDB", "MROONGA"),
        )
    },
    **{
        f"new {name}": f"DROP TABLE pets; CREATE TABLE pets (name VARCHAR(20), age INT) {options}"
        for name, options in {
            "federated": "ENGINE=FEDERATED CONNECTION='mysql://root@127.0.0.1:1/db/pets'",
            "connect": "ENGINE=CONNECT TABLE_TYPE=CSV FILE_NAME='/etc/passwd'",
            "merge": "ENGINE=MERGE UNION=(pets)",
            "elsewhere": "DATA DIRECTORY='/tmp'",
        }.items()
    },
    **{
        f"{place}: {name}": definition.format(expression)
        for name, expression in EXPRESSIONS.items()
        for place, definition in PLACES.items()
    },
}


@pytest.fixture(scope="module")
def env(spec: str) -> Iterator[DBBenchEnv]:
    """An environment on each backend, in which an episode goes on after a timeout."""
    made = DBBenchEnv(
        task_source=TASKS,
        database=spec,
        statement_timeout_s=TIMEOUT_S,
        max_database_mib=4,
        max_turns=8,
        timeout_ends=False,
    )
    yield made
    made.close()


def play(env: DBBenchEnv, spec: str, task: str, *statements: str) -> Outcome:
    """Returns the outcome; every step ends in the statement's time and a little more.

    The machine may be shared. What this process computes itself is counted in its own seconds; a
    server, whose statements would go on for 9 s, has four.
    """
    env.reset(options={"task": task})
    clock, slack_s = (time.process_time, 1) if spec == "sqlite" else (time.monotonic, 4)
    for action in [*map(operation_action, statements), DONE]:
        start_s = clock()
        info = env.step(action)[-1]
        assert clock() - start_s < TIMEOUT_S + slack_s, action
    outcome: Outcome = info["outcome"]
    return outcome


@pytest.mark.parametrize("name", DEFINITIONS)
def test_what_the_agent_made_of_a_table_is_at_worst_its_failure(
    env: DBBenchEnv, spec: str, name: str
) -> None:
    outcome = play(env, spec, "insert", DEFINITIONS[name], GOLD)
    assert outcome in (Outcome.FAILURE, Outcome.SUCCESS)
    assert play(env, spec, "insert", DEFINITIONS[name]) is Outcome.FAILURE
    assert play(env, spec, "insert", GOLD) is Outcome.SUCCESS


def test_a_gold_statement_that_leaves_no_readable_table_is_bad_data(mysql_url: str) -> None:
    database = open_database(mysql_url, DatabaseLimits())
    task = write_task("discard", "ALTER TABLE pets DISCARD TABLESPACE")
    with (
        closing(database.open([PETS])) as session,
        pytest.raises(DataError, match="cannot be read"),
    ):
        Grader(database).is_right_state(task, session)
    database.close()


def test_a_generated_column_is_graded_by_its_values(env: DBBenchEnv, spec: str) -> None:
    env.reset(options={"task": "generated"})
    if env.step(operation_action(GENERATED))[0] != "[]":
        return  # the embedded backend has none
    assert env.step(DONE)[-1]["outcome"] is Outcome.SUCCESS
    right = "ALTER TABLE pets ADD COLUMN twice INT AS (age + age) STORED"
    wrong = "ALTER TABLE pets ADD COLUMN twice INT AS (age + 2) VIRTUAL"
    assert play(env, spec, "generated", right) is Outcome.SUCCESS
    assert play(env, spec, "generated", wrong) is Outcome.FAILURE
