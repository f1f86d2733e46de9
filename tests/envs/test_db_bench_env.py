from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest

import agentpeft.envs  # noqa: F401 (registers)
from agentpeft.envs import EnvFault, Outcome, SettingsError, Taskset
from agentpeft.envs.db_bench.actions import answer_action, operation_action
from agentpeft.envs.db_bench.backends.protocol import Column, Table
from agentpeft.envs.db_bench.env import DBBenchEnv
from agentpeft.envs.db_bench.tasks import DBBenchTask

PETS = Table(
    "pets",
    (Column("name", "VARCHAR(20)"), Column("age", "INT")),
    (("Ada", 3), ("Bo", 5), ("Cy", 5)),
)
READ = DBBenchTask(
    task_id="read",
    instruction="Which pets are 5 years old?",
    tables=(PETS,),
    is_write=False,
    gold_sql="SELECT name FROM pets WHERE age = 5",
)
WRITE = DBBenchTask(
    task_id="write",
    instruction="Add Di, 1 year old.",
    tables=(PETS,),
    is_write=True,
    gold_sql="INSERT INTO pets VALUES ('Di', 1)",
)
TASKS = Taskset([READ, WRITE])
INSERT = operation_action("INSERT INTO pets VALUES ('Di', 1)")
DONE = answer_action("done")


@pytest.fixture
def play():
    """Returns a function that plays actions and returns (texts, total reward, outcome)."""
    envs = []

    def play_actions(task_id, *actions, **kwargs):
        env = DBBenchEnv(task_source=TASKS, **kwargs)
        envs.append(env)
        env.reset(options={"task": task_id})
        texts, total = [], 0.0
        for action in actions:
            text, reward, terminated, _, info = env.step(action)
            texts.append(text)
            total += reward
        assert terminated == (info["outcome"] is not Outcome.ONGOING)
        return texts, total, info["outcome"]

    yield play_actions
    for env in envs:
        env.close()


def test_a_question_is_answered_in_two_turns(play):
    query, answer = operation_action(READ.gold_sql), answer_action("[('Bo',), ('Cy',)]")
    assert play("read", query, answer) == (["[('Bo',), ('Cy',)]", ""], 1.0, Outcome.SUCCESS)


def test_a_wrong_answer_fails(play):
    assert play("read", answer_action("[('Bo',)]")) == ([""], -0.1, Outcome.FAILURE)


def test_a_change_counts_when_an_answer_follows(play):
    assert play("write", INSERT, DONE) == (["[]", ""], 1.0, Outcome.SUCCESS)


def test_an_answer_without_the_change_fails(play):
    assert play("write", DONE)[2] is Outcome.FAILURE


def test_a_correct_write_followed_by_garbage_is_not_correct(play):
    assert play("write", INSERT, "garbage")[1:] == (-0.1, Outcome.INVALID_ACTION)


def test_a_correct_write_without_an_answer_is_not_correct(play):
    look = operation_action("SELECT 1")
    assert play("write", INSERT, look, look, look)[1:] == (-0.1, Outcome.TURN_LIMIT)


def test_a_change_undone_afterwards_fails(play):
    undo = operation_action("DELETE FROM pets WHERE name = 'Di'")
    assert play("write", INSERT, undo, DONE)[2] is Outcome.FAILURE


def test_a_change_in_other_words_or_with_a_look_before_it_counts(play):
    look = operation_action("SELECT COUNT(*) FROM pets")
    other = operation_action("INSERT INTO pets (age, name) VALUES (1, 'Di')")
    assert play("write", look, INSERT, DONE)[2] is Outcome.SUCCESS
    assert play("write", other, DONE)[2] is Outcome.SUCCESS


def test_a_change_made_twice_fails(play):
    assert play("write", INSERT, INSERT, DONE)[2] is Outcome.FAILURE


def test_an_invalid_action_may_cost_only_a_turn(play):
    texts, _, outcome = play("write", "garbage", INSERT, DONE, invalid_ends=False)
    assert "Invalid action" in texts[0]
    assert outcome is Outcome.SUCCESS


def test_a_mistake_shows_mysqls_message(play):
    texts, _, _ = play("read", operation_action("SELECT nope FROM pets"))
    assert texts == ["1054 (42S22): Unknown column 'nope' in 'field list'"]


def test_a_semicolon_inside_a_string_does_not_split(play):
    texts, _, _ = play("read", operation_action("SELECT 'a;b' AS x; SELECT 'c;d'"))
    assert texts == ["[('c;d',)]"]


def test_a_flood_of_output_is_cut_with_a_note(play):
    flood = operation_action("SELECT REPEAT('x', 50000)")
    texts, _, _ = play("read", flood, max_result_chars=100)
    assert len(texts[0]) < 200
    assert "cut" in texts[0]


def test_more_rows_than_the_agent_may_see_are_graded_all_the_same(play):
    query, part = operation_action(READ.gold_sql), answer_action("[('Bo',)]")
    texts, _, outcome = play("read", query, part, max_result_rows=1)
    assert (texts[0], outcome) == ("[('Bo',)] [cut: only the first 1 rows]", Outcome.FAILURE)
    whole = answer_action("[('Bo',), ('Cy',)]")
    assert play("read", whole, max_result_rows=1)[2] is Outcome.SUCCESS


PAIRS = ", ".join(f"(SELECT 1 UNION ALL SELECT 2) AS t{number}" for number in range(40))
ENDLESS = operation_action(f"SELECT COUNT(*) FROM {PAIRS}")


def test_a_statement_over_its_time_ends_the_episode(play):
    texts, reward, outcome = play("read", ENDLESS, statement_timeout_s=0.2)
    assert texts[0].startswith("3024 (HY000): Query execution was interrupted")
    assert (reward, outcome) == (-0.3, Outcome.TIMEOUT)


def test_a_statement_over_its_time_may_cost_only_a_turn(play):
    answer = answer_action("['Bo', 'Cy']")
    result = play("read", ENDLESS, answer, statement_timeout_s=0.2, timeout_ends=False)
    assert result[1:] == (1.0, Outcome.SUCCESS)


@pytest.mark.parametrize(
    "sql",
    ["SET GLOBAL max_connections = 1", "CREATE DATABASE other", "SHUTDOWN", "DROP DATABASE db"],
)
def test_nothing_reaches_the_server_or_later_episodes(sql):
    env = DBBenchEnv(task_source=TASKS)
    env.reset(options={"task": "write"})
    text = env.step(operation_action(f"{sql}"))[0]
    assert text[:4].isdigit()
    env.reset(options={"task": "read"})
    assert env.step(operation_action(READ.gold_sql))[0] == "[('Bo',), ('Cy',)]"
    env.close()


def test_episodes_do_not_see_each_other():
    env = DBBenchEnv(task_source=TASKS)
    env.reset(options={"task": "write"})
    env.step(operation_action("CREATE TABLE notes (a INT); DELETE FROM pets"))
    env.reset(options={"task": "read"})
    assert env.step(operation_action("SELECT COUNT(*) FROM pets"))[0] == "[(3,)]"
    assert env.step(operation_action("SELECT * FROM notes"))[0].startswith("1146 (42S02)")
    env.close()


@pytest.mark.parametrize("prompt", ["full", "compact"])
def test_prompts_say_tables_task_limit_and_syntax(prompt):
    env = DBBenchEnv(task_source=TASKS, prompt=prompt, max_turns=7)
    text, _ = env.reset(options={"task": "read"})
    for part in ("pets", "name", "VARCHAR(20)", "age", "INT", READ.instruction, "7 turns"):
        assert part in text
    for part in ("Action: Operation", "```sql", "Action: Answer", "Final Answer: "):
        assert part in text
    env.close()


@pytest.mark.parametrize("prompt", ["full", "tools"])
@pytest.mark.parametrize(
    ("table", "column", "shown"),
    [
        ("Home games", "age", "`Home games`"),
        ("Home games", "Rank", "`Home games`, `Rank`"),
        ("pets", "size (m)", "`size (m)`"),
        ("pets", "1st", "`1st`"),
        ("pets", "größe", "`größe`"),
        ("a`b", "age", "`a``b`"),
        ("pets", "age", None),
    ],
)
def test_prompts_say_how_names_are_written_that_are_no_plain_words(prompt, table, column, shown):
    made = Table(table, (Column(column, "INT"),), ((1,),))
    gold = f"SELECT COUNT(*) FROM `{table.replace('`', '``')}`"
    task = replace(READ, tables=(made,), gold_sql=gold, label=((1,),))
    env = DBBenchEnv(task_source=Taskset([task]), prompt=prompt)
    text, _ = env.reset(options={"task": "read"})
    hints = [line for line in text.splitlines() if "names in backticks: " in line]
    assert [line.partition(": ")[2] for line in hints] == ([f"{shown}."] if shown else [])
    assert ("FROM `my pets` WHERE `age (years)` > 3" in text) == (bool(shown) and prompt == "full")
    assert ("FROM pets WHERE age > 3" in text) == (not shown and prompt == "full")
    for action in env.oracle_actions(env.task):
        *_, info = env.step(action)
    assert info["outcome"] == "success"
    env.close()


def test_the_compact_prompt_shows_names_as_sql_has_them():
    made = Table("Home games", (Column("rank", "INT"), Column("age", "INT")), ((1, 2),))
    task = replace(READ, tables=(made,), gold_sql="SELECT age FROM `Home games`", label=((2,),))
    env = DBBenchEnv(task_source=Taskset([task]), prompt="compact")
    text, _ = env.reset(options={"task": "read"})
    assert text.startswith("`Home games`(`rank` INT, age INT)\n")
    env.close()


def test_the_compact_prompt_shows_the_answer_to_write():
    env = DBBenchEnv(task_source=TASKS, prompt="compact")
    assert '"Final Answer: [(value, ...), ...]"' in env.reset(options={"task": "read"})[0]
    assert '"Final Answer: done"' in env.reset(options={"task": "write"})[0]
    env.close()


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"prompt": "terse"}, "unknown prompt 'terse'; known: compact, full"),
        ({"skill_mode": "some"}, "skill_mode must be 'single' or 'all'"),
        ({"skills": ["slect"]}, "unknown skill 'slect'; did you mean 'select'"),
        ({"skills": ["insert", "group_by_single_column"], "skill_mode": "all"}, "insert"),
        ({"statement_timeout_s": 9.0, "episode_timeout_s": 3.0}, "would have no effect"),
        ({"max_result_chars": 10**6}, "max_result_chars must be between"),
        ({"statement_timeout_s": 0}, "statement_timeout_s must be a number > 0, got 0"),
        ({"statement_timeout_s": "5"}, "statement_timeout_s must be a number > 0, got '5'"),
        ({"statement_timeout_s": float("inf")}, "statement_timeout_s must be a number > 0"),
        ({"max_result_rows": 2.5}, "max_result_rows must be an integer >= 1, got 2.5"),
        ({"max_result_rows": 0}, "max_result_rows must be an integer >= 1, got 0"),
        ({"max_result_chars": "9"}, "max_result_chars must be an integer >= 1, got '9'"),
        ({"max_database_mib": None}, "max_database_mib must be an integer >= 1, got None"),
        ({"skills": "slect"}, "unknown skill 'slect'; did you mean 'select'"),
        ({"skills": [3]}, r"skills are names, got \[3\]"),
        ({"skills": 3}, "skills are names, got 3"),
        ({"skills": []}, "skills must name at least one skill"),
        ({"data": 3}, "data must be a path or None, got 3"),
        ({"database": "sqlight"}, "did you mean 'sqlite'"),
        ({"autocommit": 0}, "autocommit must be True or False, got 0"),
        ({"oracle_commits": 1.5}, "oracle_commits must be a number from 0 to 1, got 1.5"),
        ({"oracle_commits": "all"}, "oracle_commits must be a number from 0 to 1, got 'all'"),
        ({"max_truns": 3}, "unknown setting 'max_truns'; did you mean 'max_turns'"),
        ({"max_turns": 0}, "max_turns must be an integer >= 1"),
        ({"reward": "bd"}, "unknown reward preset 'bd'; did you mean 'db'"),
    ],
)
def test_wrong_settings_say_what_to_do(kwargs, message):
    with pytest.raises(SettingsError, match=message.replace("(", r"\(")):
        gym.make("AgentPEFT/DBBench-v0", **kwargs)


def test_an_environment_can_be_closed_twice_and_reset_after_an_open_episode():
    env = DBBenchEnv(task_source=TASKS)
    env.reset(seed=0)
    env.reset(seed=0)
    env.close()
    env.close()


COMMIT = operation_action("COMMIT")


@pytest.mark.parametrize("commit", [[COMMIT], [operation_action("SET autocommit = 1")]])
def test_without_autocommit_a_change_counts_once_it_is_committed(play, commit):
    assert play("write", INSERT, DONE, autocommit=False)[2] is Outcome.FAILURE
    assert play("write", INSERT, *commit, DONE, autocommit=False)[2] is Outcome.SUCCESS
    second = operation_action("DELETE FROM pets")
    assert play("write", INSERT, *commit, second, DONE, autocommit=False)[2] is (
        Outcome.SUCCESS if commit == [COMMIT] else Outcome.FAILURE
    )


@pytest.mark.parametrize("max_turns", [2, 3, 4])
def test_the_oracle_commits_where_it_must_and_where_it_is_asked_to(play, max_turns):
    env = DBBenchEnv(task_source=TASKS, autocommit=False, max_turns=max_turns)
    for task in (READ, WRITE):
        actions = env.oracle_actions(task)
        kwargs = {"autocommit": False, "max_turns": max_turns}
        assert play(task.task_id, *actions, **kwargs)[2] is Outcome.SUCCESS
    env.close()
    env = DBBenchEnv(skills=["update"], oracle_commits=0.3)
    tasks = (env.task_source.draw(np.random.default_rng(seed)) for seed in range(300))
    num_commits = sum(COMMIT in env.oracle_actions(task) for task in tasks)
    assert num_commits / 300 == pytest.approx(0.3, abs=0.08)
    env.close()


def test_the_full_prompt_says_whether_changes_must_be_committed():
    for autocommit, words in ((True, "are committed at once"), (False, "only after a COMMIT")):
        env = DBBenchEnv(task_source=TASKS, autocommit=autocommit)
        assert words in env.reset(options={"task": "write"})[0]
        env.close()


@pytest.mark.parametrize(
    ("task", "actions"),
    [
        (replace(WRITE, gold_sql="INSERT INTO nobody VALUES (1)"), (DONE,)),
        (replace(WRITE, gold_sql="INSERT INTO nobody VALUES (1)"), (INSERT, DONE)),
        (replace(WRITE, gold_sql="no SQL"), (INSERT, DONE)),
        (replace(READ, gold_sql="SELECT age FROM nobody"), (answer_action("[('Bo',)]"),)),
    ],
)
@pytest.mark.parametrize("partial_credit", [0.0, 0.5])
def test_a_gold_solution_that_fails_is_a_fault_of_its_episode_alone(
    spec, task, actions, partial_credit
):
    env = DBBenchEnv(task_source=TASKS, database=spec, partial_credit=partial_credit)
    env.reset(options={"task": task})
    for action in actions[:-1]:
        env.step(action)
    with pytest.raises(
        EnvFault, match=rf"DBBenchEnv, task '{task.task_id}', turn .*gold SQL fails"
    ):
        env.step(actions[-1])
    env.reset(options={"task": "write"})
    env.step(INSERT)
    assert env.step(DONE)[4]["is_success"]
    env.close()
