"""Shares of what a wrong answer, change or machine has right (`partial_credit`)."""

import pytest

from agentpeft.envs import Outcome, SettingsError, Taskset
from agentpeft.envs.db_bench.actions import answer_action, operation_action
from agentpeft.envs.db_bench.backends.protocol import Column, Table, TableContents, UnreadableTable
from agentpeft.envs.db_bench.env import DBBenchEnv
from agentpeft.envs.db_bench.grading.partial_credit import share_of_changes, share_of_rows
from agentpeft.envs.db_bench.tasks import DBBenchTask
from agentpeft.envs.os_interaction.actions import command_action
from agentpeft.envs.os_interaction.env import OSInteractionEnv
from agentpeft.envs.os_interaction.grading.answers import ExpectedAnswer
from agentpeft.envs.os_interaction.grading.state import FileState, State
from agentpeft.envs.os_interaction.tasks import OSTask, Script, Verdict

PETS = Table(
    "pets",
    (Column("name", "VARCHAR(20)"), Column("age", "INT"), Column("weight", "DECIMAL(5,2)")),
    (("Ada", 3, "1.50"), ("Bo", 5, "2.25"), ("Cy", 5, "3.00"), ("Di", 8, "4.00")),
)
READ = DBBenchTask(
    task_id="read",
    instruction="Names of the pets that are 5 or 8, by name.",
    tables=(PETS,),
    is_write=False,
    gold_sql="SELECT name FROM pets WHERE age >= 5 ORDER BY name",
)
WRITE = DBBenchTask(
    task_id="write",
    instruction="Make those of 5 years 6.",
    tables=(PETS,),
    is_write=True,
    gold_sql="UPDATE pets SET age = 6 WHERE age = 5",
)


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        ([(1,), (2,)], [(1,), (2,)], 1),
        ([(2,), (1,)], [(1,), (2,)], 1),
        ([(1,)], [(1,), (2,), (3,)], 1 / 3),
        ([(1,), (1,), (1,)], [(1,), (2,)], 1 / 3),
        ([(1,), (2,), (3,), (4,)], [(1,)], 1 / 4),
        ([("1",), ("2.5",)], [(1,), (7,)], 1 / 2),
        ([(1, 2)], [(1,)], 0),
        ([], [(1,)], 0),
        ([], [], 0),
        ([(1,)] * 501, [(1,)], 0),
    ],
)
def test_rows_too_many_cost_as_much_as_rows_that_are_missing(answer, gold, expected):
    assert share_of_rows(answer, gold) == pytest.approx(expected)


def contents(*rows):
    return TableContents(("a", "b"), tuple(rows))


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (contents((1, 1), (2, 9), (3, 9)), 1),  # the gold state
        (contents((1, 1), (2, 2), (3, 3)), 0),  # untouched
        (contents((1, 1), (2, 9), (3, 3)), 2 / 4),  # one of two rows changed
        (contents((1, 1), (3, 3)), 1 / 4),  # one of two removed, nothing added
        (contents((1, 9), (2, 9), (3, 9)), 4 / 6),  # one row too many changed
        (contents((1, 1), (2, 8), (3, 8)), 2 / 4),  # the right rows, with a wrong value
        (None, 2 / 4),  # dropped: the two rows to remove are gone, and one more
        (UnreadableTable("why"), 2 / 4),
    ],
)
def test_what_was_left_as_it_was_earns_nothing(after, expected):
    before, gold = contents((1, 1), (2, 2), (3, 3)), contents((1, 1), (2, 9), (3, 9))
    assert share_of_changes([before], [after], [gold]) == pytest.approx(expected)


@pytest.fixture
def play():
    """Returns a function that plays actions and returns the total reward and the outcome."""
    envs = []

    def play_actions(task_id, *actions, **kwargs):
        env = DBBenchEnv(task_source=Taskset([READ, WRITE]), **kwargs)
        envs.append(env)
        env.reset(options={"task": task_id})
        total = 0.0
        for action in actions:
            _, reward, _, _, info = env.step(action)
            total += reward
        return total, info["outcome"]

    yield play_actions
    for env in envs:
        env.close()


@pytest.mark.parametrize(
    ("answer", "share"),
    [
        ("[('Bo',), ('Cy',)]", 2 / 3),
        ("[('Bo',), ('Cy',), ('Di',), ('Ada',)]", 3 / 4),
        ("[('Di',), ('Cy',), ('Bo',)]", 1),
        ("no idea", 0),
        ("", 0),
    ],
)
def test_a_wrong_answer_earns_its_share_of_rows(play, answer, share):
    action = answer_action(answer)
    assert play("read", action) == (-0.1, Outcome.FAILURE)
    reward, outcome = play("read", action, partial_credit=0.5)
    assert (reward, outcome) == (pytest.approx(-0.1 + 0.5 * share), Outcome.FAILURE)


@pytest.mark.parametrize(
    ("sql", "share"),
    [
        ("SELECT 1", 0),
        ("UPDATE pets SET age = 6 WHERE name = 'Bo'", 2 / 4),
        ("UPDATE pets SET age = 6", 4 / 8),
        ("UPDATE pets SET age = 7 WHERE age = 5", 2 / 4),
        ("DELETE FROM pets", 2 / 4),
    ],
)
def test_a_wrong_change_earns_its_share_of_rows(play, sql, share):
    actions = operation_action(sql), answer_action("done")
    reward, outcome = play("write", *actions, partial_credit=1.0)
    assert (reward, outcome) == (pytest.approx(-0.1 + share), Outcome.FAILURE)


def test_success_and_other_ends_are_as_without_it(play):
    right = operation_action(WRITE.gold_sql), answer_action("done")
    assert play("write", *right, partial_credit=1.0) == (1.0, Outcome.SUCCESS)
    assert play("write", right[0], "?", partial_credit=1.0) == (-0.1, Outcome.INVALID_ACTION)
    with pytest.raises(SettingsError, match="partial_credit must be"):
        DBBenchEnv(partial_credit=2.0)


ORDER = OSTask(
    task_id="order",
    instruction="Create /srv/x with the line hello, and delete /srv/old; /srv/new stays.",
    verdict=Verdict(
        State(
            files=(
                FileState("/srv/x", content="hello\n"),
                FileState("/srv/old", "absent"),
                FileState("/srv/new"),
            )
        ),
        ExpectedAnswer("7", "number"),
        (Script("test -e /srv/x && echo 1"), Script("test $2 = 1 && grep -q hello /srv/x")),
    ),
    setup=Script("mkdir -p /srv; touch /srv/old /srv/new"),
    wants_answer=True,
)


@pytest.fixture(scope="module")
def machine(sandbox_kind):
    options = {"sandbox": sandbox_kind, "command_timeout_s": 4.0, "partial_credit": 0.5}
    env = OSInteractionEnv(task_source=Taskset([ORDER]), **options)
    yield env
    env.close()


@pytest.mark.parametrize(
    ("script", "answer", "share"),
    [
        (":", "Act: finish", 0),
        (":", "Act: answer(7)", 1 / 5),
        ("rm /srv/old", "Act: answer(7)", 2 / 5),
        ("rm /srv/old /srv/new", "Act: answer(7)", 1 / 5),
        ("rm /srv/new", "Act: finish", 0),
        ("echo no > /srv/x", "Act: answer(7)", 2 / 5),
        ("echo hello > /srv/x", "Act: answer(7)", 4 / 5),
    ],
)
def test_a_machine_that_is_not_as_it_must_be_earns_the_checks_that_the_agent_made_right(
    machine, script, answer, share
):
    """Of six checks, that /srv/new is there held at the start."""
    machine.reset(options={"task": "order"})
    machine.step(command_action(script))
    _, reward, _, _, info = machine.step(answer)
    assert (reward, info["outcome"]) == (pytest.approx(-0.5 + 0.5 * share), Outcome.FAILURE)
    assert machine.mistake


def test_a_machine_that_is_as_it_must_be_earns_the_success_alone(machine):
    machine.reset(options={"task": "order"})
    machine.step(command_action("rm /srv/old; echo hello > /srv/x"))
    _, reward, _, _, info = machine.step("Act: answer(7)")
    assert (reward, info["outcome"], machine.mistake) == (1.0, Outcome.SUCCESS, None)
    machine.reset(options={"task": "order"})
    machine.step(command_action("rm /srv/old; echo hello > /srv/x"))
    assert machine.step("Act: sing")[1] == -0.5
