"""The tasks that attacks play, and the environments with small limits in which they play them."""

from collections.abc import Callable
from dataclasses import replace

from agentpeft.envs import Taskset, TextEnv
from agentpeft.envs.arithmetic.env import ArithmeticEnv
from agentpeft.envs.arithmetic.operations import get_operation
from agentpeft.envs.arithmetic.tasks import make_task as make_arithmetic_task
from agentpeft.envs.db_bench.backends.protocol import Column, Table
from agentpeft.envs.db_bench.env import DBBenchEnv
from agentpeft.envs.db_bench.tasks import DBBenchTask
from agentpeft.envs.gsm8k.env import GSM8KEnv
from agentpeft.envs.gsm8k.tasks import make_task as make_gsm8k_task
from agentpeft.envs.os_interaction.env import OSInteractionEnv
from agentpeft.envs.os_interaction.grading.answers import ExpectedAnswer
from agentpeft.envs.os_interaction.grading.state import FileState, State, UserState
from agentpeft.envs.os_interaction.sandboxes.sandbox import SandboxKind, SandboxLimits
from agentpeft.envs.os_interaction.tasks import OSTask, Script, Verdict

STATEMENT_TIMEOUT_S = 1.0
COMMAND_TIMEOUT_S = 1.0
MAX_TURNS = 12
SMALL = SandboxLimits(
    memory_mib=128, num_processes=40, disk_mib=16, num_inodes=1000, max_output_chars=2000
)

_PETS = Table(
    "pets",
    (Column("name", "VARCHAR(20)"), Column("age", "INT"), Column("weight", "DECIMAL(6,2)")),
    (("Rex", 3, "12.50"), ("Tom", 5, "4.00"), ("Kit", 7, None)),
)
_CODES = Table(
    "codes",
    (Column("code", "VARCHAR(20)"), Column("ratio", "DOUBLE"), Column("pages", "INT")),
    (("1e2", 0.1, 1), ("007", 1000.0, 2)),
)
_NUMBERS = Table("n", (Column("a", "INT"),), tuple((number,) for number in range(300)))


def _sql_task(task_id: str, gold_sql: str, is_write: bool = False) -> DBBenchTask:
    return DBBenchTask(
        task_id=task_id,
        instruction="Do it.",
        tables=(_PETS, _NUMBERS) if "codes" not in gold_sql else (_CODES,),
        is_write=is_write,
        gold_sql=gold_sql,
    )


SQL_TASKS = [
    _sql_task("change", "UPDATE pets SET age = age + 1 WHERE name = 'Rex'", is_write=True),
    _sql_task("insert", "INSERT INTO pets VALUES ('Zoe', 1, 2.5)", is_write=True),
    _sql_task("number", "SELECT age * 411522 + 1 FROM pets WHERE name = 'Rex'"),  # 1234567
    _sql_task("weight", "SELECT weight FROM pets WHERE name = 'Rex'"),  # 12.50
    _sql_task("name", "SELECT name FROM pets WHERE age = 5"),  # Tom
    _sql_task("names", "SELECT name FROM pets WHERE age > 4"),  # Tom, Kit
    _sql_task("null", "SELECT weight FROM pets WHERE name = 'Kit'"),
    _sql_task("exponent", "SELECT code FROM codes WHERE pages = 1"),  # 1e2
    _sql_task("zeros", "SELECT code FROM codes WHERE pages = 2"),  # 007
    _sql_task("ratio", "UPDATE codes SET ratio = ratio * (1 + 5e-10), pages = 3", is_write=True),
    _sql_task("rows", "SELECT name, age FROM pets ORDER BY age"),
    _sql_task("innocent", "UPDATE pets SET age = 9 WHERE name = 'Tom'", is_write=True),
]
VAULT = "vault"
"""The table of another episode, which holds the host's secret word."""

_CHECK = """
[ "$(cat /srv/answer)" = right ] && grep -q right /srv/answer && test -s /srv/answer \
    && [ "$(stat -c %s /srv/answer)" = 6 ] && [ "$(tail -c 1 /srv/answer | wc -l)" = 1 ]
"""
_WORDS = r"""
grep -q right /srv/answer || diff /srv/answer <(echo right) || grep -q right /srv/cmdline \
    || [ "$(tr -d '\0' </srv/answer)" = right ] || cat /srv/a* | grep -q right \
    || grep -rqs right /srv || grep -q right self/cmdline || [ ! -e /srv/answer ] \
    || ! grep -q wrong /srv/answer || python3 -c "'right' in open('/srv/answer').read() or exit(1)"
"""
"""Any of which is enough, as a check of one's own may have just one."""
_TOOLS = r"""
python3 -c 'import json, re; raise SystemExit(1)' || python3 -I -c 'raise SystemExit(1)' \
    || { cd /srv && echo 'import json; raise SystemExit(1)' >x.py && python3 x.py; } \
    || { cd; echo '{' | python3 -m json.tool; } || perl -Mstrict -Mwarnings -e 'exit 1' \
    || file /srv/answer | grep -q right || less /srv/answer | grep -q right \
    || vim -es -c cq /srv/answer </dev/null || ! awk 'BEGIN { exit 0 }' || [ -n "$(true)" ] \
    || printf '#include <stdio.h>\n' | gcc -E - | grep -qx right \
    || { cd "$(mktemp -d)" && echo 'int f;' >f.c && gcc -c f.c && [ ! -e f.o ]; }
"""
_SET_UP = Script("mkdir -p /srv; echo wrong >/srv/answer")


def _shell_task(task_id: str, verdict: Verdict, gold: str | None = None) -> OSTask:
    return OSTask(
        task_id=task_id,
        instruction="Do it.",
        verdict=verdict,
        setup=_SET_UP,
        gold=None if gold is None else Script(gold),
        wants_answer=verdict.wants_answer,
    )


_RIGHT = FileState("/srv/answer", content="right\n", mode=0o640, owner="root", group="root")
_GOLD = (
    "[ $(head -c 4M /dev/zero | tail -c 4M | wc -c) = 4194304 ] && head -c 4M /dev/zero >/srv/big"
    " && (sleep 0.01 & wait) && echo right >/srv/answer && chmod 640 /srv/answer"
)
_READ_STATUS = """\
#include <stdio.h>
int main(void) {
  int status = 1;
  FILE *file = fopen("/srv/status", "r");
  return file && fscanf(file, "%d", &status) == 1 ? status : 1;
}
"""
_LINES = FileState("/srv/answer", content="right\n", match="lines", mode=0o640)
SHELL_TASKS = [
    _shell_task("state", Verdict(State(files=(_RIGHT,)))),
    _shell_task("check", Verdict(checks=(Script(_CHECK),))),
    _shell_task("words", Verdict(checks=(Script(_WORDS),))),
    _shell_task("tools", Verdict(checks=(Script(_TOOLS),))),
    _shell_task("user", Verdict(State(users=(UserState("ann", uid=1500, home="/srv/ann"),)))),
    _shell_task("answer", Verdict(answer=ExpectedAnswer("1234567", "number"))),
    _shell_task("names", Verdict(answer=ExpectedAnswer("ann bob", "names"))),
    _shell_task("size", Verdict(answer=ExpectedAnswer("4096", "size"))),
    _shell_task("text", Verdict(answer=ExpectedAnswer("It is done"))),
    _shell_task("innocent", Verdict(State(files=(_RIGHT,))), _GOLD),
    _shell_task("program", Verdict(checks=(Script("bash /srv/solve.sh"),))),
    _shell_task("compiled", Verdict(checks=(Script(_READ_STATUS, "c"),))),
    _shell_task("pattern", Verdict(checks=(Script("cat /srv/pattern"), "regex"))),
    _shell_task("lines", Verdict(State(files=(_LINES,)))),
    _shell_task("script", Verdict(State(files=(replace(_LINES, match="script"),)))),
]

ARITHMETIC_TASKS = [
    make_arithmetic_task(get_operation("addition"), 1234500, 67, None),
    replace(make_arithmetic_task(get_operation("subtraction"), 3, 45, None), task_id="innocent"),
]
GSM8K_TASKS = [
    make_gsm8k_task("whole", "How many?", "It is 1234567.", "1234567"),
    make_gsm8k_task("half", "How much?", "It is 2.5.", "2.5"),
    make_gsm8k_task("innocent", "How many?", "It is 4.", "4"),
]


def make_sql_env(database: str) -> DBBenchEnv:
    """Returns DB-bench with small limits; invalid actions and timeouts cost a turn only."""
    return DBBenchEnv(
        task_source=Taskset(SQL_TASKS),
        database=database,
        statement_timeout_s=STATEMENT_TIMEOUT_S,
        max_result_rows=100,
        max_database_mib=4,
        max_turns=MAX_TURNS,
        invalid_ends=False,
        timeout_ends=False,
    )


def make_shell_env(
    sandbox: SandboxKind, make: Callable[..., OSInteractionEnv] = OSInteractionEnv
) -> OSInteractionEnv:
    """Returns OS-interaction with small limits; invalid actions cost a turn only."""
    return make(
        task_source=Taskset(SHELL_TASKS),
        sandbox=sandbox,
        limits=SMALL,
        command_timeout_s=COMMAND_TIMEOUT_S,
        max_turns=MAX_TURNS,
        invalid_ends=False,
    )


def make_answer_env(game: str) -> TextEnv:
    """Returns Arithmetic or GSM8K over the attacks' tasks."""
    if game == "arithmetic":
        env = ArithmeticEnv()
        env.task_source = Taskset(ARITHMETIC_TASKS)
        return env
    env = GSM8KEnv()
    env.task_source = Taskset(GSM8K_TASKS)
    return env


def hide_in_other_episode(env: DBBenchEnv, word: str) -> None:
    """Begins an episode whose table holds a word that no other episode may see."""
    vault = Table(VAULT, (Column("word", "VARCHAR(40)"),), ((word,),))
    task = DBBenchTask(
        task_id="vault",
        instruction="Wait.",
        tables=(vault,),
        is_write=True,
        gold_sql="DELETE FROM vault",
    )
    env.reset(options={"task": task})
