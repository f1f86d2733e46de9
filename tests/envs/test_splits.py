"""Tasks of "train" and "test" have nothing in common that could be learnt by heart."""

import cProfile
import hashlib
import re
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import sqlglot
from sqlglot import exp

from agentpeft.envs import SettingsError, Taskset, UnknownTaskError
from agentpeft.envs.arithmetic.operations import Operation, get_operation
from agentpeft.envs.arithmetic.tasks import ArithmeticGenerator
from agentpeft.envs.core.text_env import TextEnv
from agentpeft.envs.db_bench.env import DBBenchEnv
from agentpeft.envs.db_bench.generator import DBBenchGenerator, tables
from agentpeft.envs.db_bench.skills import SKILLS
from agentpeft.envs.gsm8k.word_problems import WordProblems, load_templates

NUM_TASKS = 2000
DB = "AgentPEFT/DBBench-v0"
ENVS = {
    DB: {},
    "AgentPEFT/Arithmetic-v0": {"operations": ["addition", "multiplication"]},
    "AgentPEFT/GSM8K-v0": {},
}


def make(env_id, **kwargs) -> TextEnv:
    return gym.make(f"agentpeft.envs:{env_id}", **kwargs).unwrapped


@pytest.fixture(scope="module")
def db_tasks():
    single = {split: DBBenchGenerator(split=split) for split in ("train", "test")}
    pairs = {
        split: DBBenchGenerator(skill_mode="all", num_skills=2, split=split) for split in single
    }
    return {
        split: [
            *Taskset.generate(single[split], NUM_TASKS, seed=1),
            *Taskset.generate(pairs[split], NUM_TASKS // 4, seed=2),
        ]
        for split in single
    }


def literals(sql):
    """Yields the values in a statement, numbers as floats, but for those of LIMIT and OFFSET."""
    for literal in sqlglot.parse_one(sql, read="mysql").find_all(exp.Literal):
        if not isinstance(literal.parent, exp.Limit | exp.Offset):
            yield literal.this.lower() if literal.is_string else float(literal.this)


@pytest.mark.slow
def test_gold_sql_of_the_splits_shares_no_literal_and_no_table_name(db_tasks):
    used = {}
    for split, tasks in db_tasks.items():
        names = {task.tables[0].name for task in tasks}
        used[split] = names | {value for task in tasks for value in literals(task.gold_sql)}
        assert len(names) > 100
        assert {type(value) for value in used[split]} == {str, float}
    assert not used["train"] & used["test"]


@pytest.mark.slow
def test_every_skill_has_tasks_of_both_splits(db_tasks):
    for tasks in db_tasks.values():
        single = [task for task in tasks if "+" not in task.task_id]
        assert {task.task_id.split("/")[0] for task in single} == set(SKILLS)
        assert {task.task_id.split("/")[1] for task in tasks} <= {"all;train", "all;test"}


def problem(task_id):
    """Returns an arithmetic id's problem with the smaller operand first."""
    name, left, symbol, right = re.fullmatch(r"(\w+):(\d+)(\D)(\d+):\w+", task_id).groups()
    return name, symbol, *sorted((int(left), int(right)))


@pytest.mark.parametrize("width", [None, 2])
def test_arithmetic_problems_of_the_splits_differ_in_either_order(width):
    operations = (get_operation("addition"), get_operation("multiplication"))
    drawn = {}
    for split in ("train", "test"):
        source = ArithmeticGenerator(operations, (1, 2), width, split)
        tasks = source.generate_batch(np.random.default_rng(0), NUM_TASKS)
        drawn[split] = {problem(task.task_id) for task in tasks}
        assert len(drawn[split]) > 500
    assert not drawn["train"] & drawn["test"]


def test_one_arithmetic_problem_in_four_is_for_testing():
    drawn = {}
    for split in ("train", "test", None):
        source = ArithmeticGenerator((get_operation("addition"),), (1, 1), split=split)
        tasks = source.generate_batch(np.random.default_rng(1), NUM_TASKS)
        drawn[split] = {problem(task.task_id) for task in tasks}
    assert len(drawn[None]) == 55
    assert drawn["train"] | drawn["test"] == drawn[None]
    assert 10 <= len(drawn["test"]) <= 18


def numbers_in(task):
    """Returns a word problem's template and the numbers in its question."""
    return task.task_id.split(":")[0], tuple(re.findall(r"\d+", task.instruction))


@pytest.mark.slow
def test_word_problems_of_the_splits_have_other_numbers_whoever_they_are_about():
    drawn = {}
    for split in ("train", "test", None):
        rng, source = np.random.default_rng(5), WordProblems(split)
        tasks = [source.draw(rng) for _ in range(4 * NUM_TASKS)]
        drawn[split] = {numbers_in(task) for task in tasks}
        assert {name for name, _ in drawn[split]} == set(load_templates()["templates"])
        assert [WordProblems().get(task.task_id) for task in tasks[:50]] == tasks[:50]
    assert not drawn["train"] & drawn["test"]
    few = [numbers for name, numbers in drawn["test"] if name == "twice"]
    assert 8 <= len(few) <= 20  # of 56


def test_word_problems_are_what_they_always_were():
    source, rng = WordProblems(), np.random.default_rng(0)
    drawn = [source.draw(rng) for _ in range(200)]
    made = [source.get(f"{name}:7") for name in load_templates()["templates"]]
    digest = hashlib.sha256(repr([*drawn, *made]).encode()).hexdigest()
    assert digest == "afd44e43fccbbd3646de45baa974247bf4b31b17b0d31d9458d69dfbb6ffe84e"


def test_a_batch_of_a_split_equals_single_draws():
    source = ArithmeticGenerator((get_operation("addition"),), (1, 3), split="test")
    batch = source.generate_batch(np.random.default_rng(3), 40)
    rng = np.random.default_rng(3)
    assert batch == [source.draw(rng) for _ in range(40)]


def test_a_split_without_problems_is_refused():
    only = Operation("both_nines", "@", lambda a, b: a + b, lambda n: n + 1, min_operand=9)
    sources = [ArithmeticGenerator((only,), (1, 1), split=split) for split in ("train", "test")]
    with pytest.raises(SettingsError, match="no problem of these settings is in split"):
        for source in sources:
            source.draw(np.random.default_rng(0))


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize(
    "env_id", [pytest.param(DB, marks=pytest.mark.slow), *(name for name in ENVS if name != DB)]
)
def test_the_oracle_solves_tasks_of_either_split(env_id, split):
    env = make(env_id, split=split, **ENVS[env_id])
    for seed in range(NUM_TASKS):
        env.reset(seed=seed)
        for action in env.oracle_actions(env.task):
            *_, info = env.step(action)
        assert info["is_success"], env.task.task_id
    env.close()


@pytest.mark.parametrize("split", ["train", "test", None])
@pytest.mark.parametrize("env_id", ENVS)
def test_a_task_of_a_split_is_drawn_again_and_made_again_from_its_id(env_id, split):
    first, second = (make(env_id, split=split, **ENVS[env_id]) for _ in range(2))
    for seed in range(5):
        prompt, info = first.reset(seed=seed)
        assert second.reset(seed=seed)[0] == prompt
        assert second.reset(options={"task": info["task_id"]})[0] == prompt
    first.close()
    second.close()


@pytest.mark.parametrize("env_id", ENVS)
def test_an_unknown_split_is_refused(env_id):
    with pytest.raises(SettingsError, match="split must be 'train', 'test' or None, got 'dev'"):
        make(env_id, split="dev")


def test_tasks_without_options_are_what_they_always_were():
    digest = hashlib.sha256()
    for generator in (
        DBBenchGenerator(),
        DBBenchGenerator(skill_mode="all", num_skills=3, max_phrasings=2),
    ):
        rng = np.random.default_rng(0)
        for _ in range(25):
            digest.update(repr(generator.draw(rng)).encode())
    expected = "dec9e26b3c02ca7659ca638de13d949d4e218338abe125aea3e9acae8347d1d9"
    assert digest.hexdigest() == expected


@pytest.mark.parametrize("max_rows", [4, 6])
@pytest.mark.parametrize("skill", SKILLS)
def test_tables_are_as_small_as_asked_for(skill, max_rows):
    generator = DBBenchGenerator([skill], max_columns=3, max_rows=max_rows, split="test")
    for task in Taskset.generate(generator, 20, seed=3):
        assert len(task.tables[0].columns) == 3
        assert len(task.tables[0].rows) == max_rows
        assert task.task_id.startswith(f"{skill}/all;test;c3;r{max_rows}/")
        assert generator.get(task.task_id) == task


def test_invented_words_fill_about_half_of_the_text_columns():
    folder = Path(tables.__file__).parent / "data"
    known = set(re.findall("[A-Z][a-z]+", "".join(p.read_text() for p in folder.glob("*.toml"))))
    counts = [0, 0]
    for task in Taskset.generate(DBBenchGenerator(["delete"], invent=True), 200, seed=3):
        assert "/all;i/" in task.task_id and DBBenchGenerator().get(task.task_id) == task
        for column in zip(*task.tables[0].rows, strict=True):
            if isinstance(column[0], str):
                words = [word for text in column for word in re.findall("[A-Z][a-z]+", text)]
                counts[any(word in known for word in words)] += 1
    assert 0.8 < counts[0] / counts[1] < 1.25


def test_texts_of_gold_sql_are_as_short_as_asked_for():
    generator = DBBenchGenerator(["update"], max_text_chars=4, split="train")
    num_texts = 0
    for task in Taskset.generate(generator, 100, seed=3):
        assert "/all;train;t4/" in task.task_id and generator.get(task.task_id) == task
        for text in re.findall(r"'([A-Za-z ]+)'", task.gold_sql):
            assert len(text) <= 4
            num_texts += 1
    assert num_texts > 20


def test_skills_that_need_more_columns_get_them():
    skills = ["group_by_multiple_columns", "having_aggregate_calculation"]
    generator = DBBenchGenerator(skills, skill_mode="all", max_columns=3)
    assert len(generator.draw(np.random.default_rng(0)).tables[0].columns) == 4


@pytest.mark.parametrize(
    "settings",
    [
        {"max_columns": 2},
        {"max_columns": 3.5},
        {"max_rows": 3},
        {"max_text_chars": 2},
        {"num_skills": 2},
        {"invent": 1},
    ],
)
def test_limits_that_cannot_work_are_refused(settings):
    with pytest.raises(SettingsError, match=next(iter(settings))):
        DBBenchEnv(**settings)


@pytest.mark.parametrize(
    "setting", [{"split": "test"}, {"max_columns": 4}, {"max_phrasings": 1}, {"invent": True}]
)
def test_generator_settings_are_refused_with_tasks_of_ones_own(tmp_path, setting):
    with pytest.raises(SettingsError, match="is for generated tasks"):
        DBBenchEnv(data=tmp_path / "tasks.json", **setting)
    with pytest.raises(SettingsError, match="either task_source, or"):
        DBBenchEnv(task_source=DBBenchGenerator(), **setting)


def test_settings_of_the_environment_reach_its_generator():
    env = DBBenchEnv(
        skills=["limit_only", "column_alias", "table_alias"],
        skill_mode="all",
        num_skills=2,
        max_phrasings=1,
        max_columns=4,
        max_rows=8,
        split="test",
    )
    _, info = env.reset(seed=0)
    assert re.fullmatch(r"\w+\+\w+/1;test;c4;r8/\d+", info["task_id"])
    env.close()


@pytest.mark.parametrize(
    "options", ["all;dev", "all;c2", "0;test", "all;r8;c4", "all;", "1;train;c٣"]
)
def test_ids_with_wrong_options_are_unknown(options):
    with pytest.raises(UnknownTaskError, match="is no generated task's id"):
        DBBenchGenerator().get(f"select/{options}/1")


@pytest.mark.parametrize("split", ["train", "test"])
def test_drawing_from_a_split_costs_little_more(split):
    def count_calls(generator):
        rng, profile = np.random.default_rng(4), cProfile.Profile()
        with profile:
            for _ in range(300):
                generator.draw(rng)
        return sum(entry.callcount for entry in profile.getstats())

    assert count_calls(DBBenchGenerator(split=split)) < 1.9 * count_calls(DBBenchGenerator())
