"""A task's id, and a seed, make the same task in every version: results stay comparable."""

import hashlib

import numpy as np
import pytest

from agentpeft.envs.arithmetic.operations import get_operation
from agentpeft.envs.arithmetic.tasks import ArithmeticGenerator
from agentpeft.envs.db_bench.generator import DBBenchGenerator
from agentpeft.envs.db_bench.skills import SKILLS
from agentpeft.envs.gsm8k.word_problems import WordProblems
from agentpeft.envs.os_interaction.generator import OSGenerator

ADDITION = (get_operation("addition"), get_operation("multiplication"))


def digest(source, num_tasks, seed):
    """Returns a hash of all that the tasks consist of, and of where they leave the generator."""
    rng = np.random.default_rng(seed)
    tasks = [source.draw(rng) for _ in range(num_tasks)]
    text = repr([sorted(vars(task).items()) for task in tasks]) + repr(rng.integers(2**62))
    text = text.replace(", is_live=False", "")  # a field that came later, at its default
    return hashlib.sha256(text.encode()).hexdigest()[:16]


CASES = {
    "db_bench": (DBBenchGenerator, 60),
    "db_bench, two skills": (lambda: DBBenchGenerator(skill_mode="all", num_skills=2), 20),
    "db_bench, three for testing": (
        lambda: DBBenchGenerator(skill_mode="all", num_skills=3, split="test"),
        6,
    ),
    "db_bench, for training": (lambda: DBBenchGenerator(split="train"), 30),
    "db_bench, invented": (lambda: DBBenchGenerator(invent=True, max_phrasings=2), 30),
    "db_bench, small": (
        lambda: DBBenchGenerator(max_columns=4, max_rows=8, max_text_chars=6),
        30,
    ),
    **{
        f"db_bench, {skill}": (lambda skill=skill: DBBenchGenerator([skill]), 12)
        for skill in SKILLS
    },
    "os": (OSGenerator, 40),
    "os, three for testing": (
        lambda: OSGenerator(skill_mode="all", num_skills=3, split="test"),
        20,
    ),
    "os, invented": (lambda: OSGenerator(invent=True, split="train"), 20),
    "arithmetic": (lambda: ArithmeticGenerator(ADDITION, (1, 6)), 100),
    "arithmetic, worked": (
        lambda: ArithmeticGenerator(ADDITION, (2, 3), 3, "train", is_worked=True),
        100,
    ),
    "gsm8k": (WordProblems, 60),
}
EXPECTED = {
    "db_bench": "d3e93bf894d0fd2a",
    "db_bench, two skills": "2a334c23118e1cba",
    "db_bench, three for testing": "2b6cd209ad7c8eff",
    "db_bench, for training": "3818f8073d44826c",
    "db_bench, invented": "b42508311a781bf8",
    "db_bench, small": "a20465de96172699",
    "db_bench, select": "068e09a5f0bcee49",
    "db_bench, insert": "a115dd6f0b378ba1",
    "db_bench, delete": "511360807dd7f6f7",
    "db_bench, update": "81604443f88ec28e",
    "db_bench, where_single_condition": "d6d901c4cc5693c7",
    "db_bench, where_multiple_conditions": "0a8a93eef720da4d",
    "db_bench, where_nested_conditions": "3c86ac9d7e54d13d",
    "db_bench, group_by_single_column": "f59eae5c9aecec48",
    "db_bench, group_by_multiple_columns": "2d94fcb15473188e",
    "db_bench, having_single_condition_with_aggregate": "4cb48ea047d47a53",
    "db_bench, having_multiple_conditions_with_aggregate": "c540e760197dcb41",
    "db_bench, having_aggregate_calculation": "77f79536d06bf08c",
    "db_bench, order_by_single_column": "fc25964118be79d1",
    "db_bench, order_by_multiple_columns_same_direction": "479b1db216f53b6c",
    "db_bench, order_by_multiple_columns_different_directions": "f93f51282be8b177",
    "db_bench, limit_only": "9446b1d8125cd850",
    "db_bench, limit_and_offset": "c8a2b07199e89dc7",
    "db_bench, column_alias": "73703035db89ba38",
    "db_bench, table_alias": "9cc302780d85c7d4",
    "db_bench, subquery_single": "6d3dee40246400f2",
    "db_bench, subquery_multiple": "75f8226e0358be72",
    "db_bench, subquery_nested": "b59363f60035b967",
    # Asked as ever; of a new user only the task's own groups are graded now.
    "os": "093e9f9e7944abd4",
    "os, three for testing": "70e5e7cd77b20b5b",
    "os, invented": "97fae302881896fe",
    "arithmetic": "1431ad4b3c4f679e",
    "arithmetic, worked": "89df7199d3e0c66c",
    "gsm8k": "2a8151b7ee64bcdd",
}


@pytest.mark.parametrize("name", CASES)
def test_a_seed_makes_the_same_tasks_as_ever(name):
    make, num_tasks = CASES[name]
    assert digest(make(), num_tasks, seed=7) == EXPECTED[name]
