"""Arithmetic problems, operations and adaptive difficulty."""

import re
from collections import Counter

import numpy as np
import pytest

from agentpeft.envs import SettingsError, Taskset, UnknownTaskError
from agentpeft.envs.arithmetic import operations as operations_module
from agentpeft.envs.arithmetic.env import ArithmeticEnv
from agentpeft.envs.arithmetic.operations import Operation, get_operation, register_operation
from agentpeft.envs.arithmetic.tasks import ArithmeticGenerator, make_task
from agentpeft.envs.tasks.difficulty import AdaptiveDifficulty

ALL = ("addition", "subtraction", "multiplication")


def make_generator(num_digits=(1, 5), width=None, names=ALL):
    return ArithmeticGenerator(tuple(get_operation(name) for name in names), num_digits, width)


@pytest.mark.parametrize(
    ("task_id", "instruction", "answer"),
    [
        ("addition:12+345:plain", "12+345=", "357"),
        ("addition:012+345:reversed", "210+543=", "7530"),
        ("addition:999+999:reversed", "999+999=", "8991"),
        ("subtraction:345-12:plain", "345-12=", "333"),
        ("subtraction:12-345:plain", "12-345=", "-333"),
        ("subtraction:012-345:reversed", "210-543=", "333-"),
        ("subtraction:40-40:reversed", "04-04=", "00"),
        ("multiplication:25*4:plain", "25*4=", "100"),
        ("multiplication:25*04:reversed", "52*40=", "0010"),
    ],
)
def test_a_task_is_made_from_its_id(task_id, instruction, answer):
    task = make_generator().get(task_id)
    assert (task.task_id, task.instruction, task.answer) == (task_id, instruction, answer)


@pytest.mark.parametrize("width", [None, 5])
def test_drawn_tasks_are_made_again_from_their_ids(width):
    generator = make_generator(width=width)
    tasks = Taskset.generate(generator, 500, seed=1)
    assert all(generator.get(task.task_id) == task for task in tasks)


@pytest.mark.parametrize(
    "task_id",
    [
        "",
        "addition",
        "addition:1+2",
        "addition:01+2:plain",
        "addition:1-2:plain",
        "addition:1+20:reversed",
        "adition:1+2:plain",
        "addition:-1+2:plain",
        f"addition:1+{'9' * 5000}:plain",
        "addition:\u0661+\u0662:plain",
    ],
)
def test_ids_of_no_task_are_refused(task_id):
    with pytest.raises(UnknownTaskError):
        make_generator().get(task_id)


@pytest.mark.parametrize("num_digits", [(1, 1), (2, 5), (30, 30)])
def test_a_batch_equals_single_draws(num_digits):
    generator = make_generator(num_digits)
    rng = np.random.default_rng(3)
    assert generator.generate_batch(np.random.default_rng(3), 40) == [
        generator.draw(rng) for _ in range(40)
    ]


def test_operands_cover_their_digits_evenly():
    batch = make_generator((1, 2), names=("addition",)).generate_batch(
        np.random.default_rng(0), 20_000
    )
    left = [int(task.instruction.split("+")[0]) for task in batch]
    counts = np.bincount(left, minlength=100)
    assert abs(counts[:10].mean() - 1000) < 50  # half of the draws over 10 numbers
    assert abs(counts[10:].mean() - 111) < 5
    assert counts.min() > 60


def test_answers_agree_with_python_and_fit_the_fixed_width():
    for task in make_generator((1, 6), width=6).generate_batch(np.random.default_rng(5), 2000):
        left, symbol, right = task.task_id.split(":")[1].partition(
            "+-*"["asm".index(task.skills[0][0])]
        )
        compute = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}[symbol]
        assert int(task.answer[::-1]) == compute(int(left), int(right))
        assert len(task.answer) == {"+": 7, "-": 6, "*": 12}[symbol]


def test_an_operation_is_added_in_one_call(monkeypatch):
    monkeypatch.setattr(operations_module, "_OPERATIONS", dict(operations_module._OPERATIONS))
    register_operation(
        Operation("quotient", "/", lambda a, b: a // b, answer_digits=lambda n: n, min_operand=1)
    )
    env = ArithmeticEnv(operations=["quotient"], num_digits=1)
    for seed in range(50):
        env.reset(seed=seed)
        assert "0" not in env.task.instruction
        assert env.step(*env.oracle_actions(env.task))[4]["is_success"]
    with pytest.raises(SettingsError, match="registered already"):
        register_operation(get_operation("quotient"))


@pytest.mark.parametrize("form", ["plain", "reversed", "worked"])
def test_modulo_divides_the_larger_operand_by_the_smaller(form):
    env = ArithmeticEnv(operations=["modulo"], num_digits=(1, 2), format=form)
    for seed in range(50):
        env.reset(seed=seed)
        left, right = map(int, re.findall("[0-9]+", env.task.task_id))
        assert left >= right > 0
        answer = env.task.answer
        assert int(answer if form == "plain" else answer[::-1]) == left % right
        assert env.step(*env.oracle_actions(env.task))[4]["is_success"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"operations": ["adition"]}, "unknown operation 'adition'; did you mean 'addition'"),
        ({"operations": []}, "at least one operation"),
        ({"operations": 3}, "operations are names, got 3"),
        ({"operations": [3]}, "operations are names, got "),
        ({"num_digits": 0}, "num_digits must be 1 to"),
        ({"num_digits": (3, 2)}, "num_digits must be 1 to"),
        ({"num_digits": (1, 2, 3)}, "an integer or"),
        ({"num_digits": 2.5}, "an integer or"),
        ({"num_digits": True}, "an integer or"),
        ({"num_digits": "12"}, "an integer or"),
        ({"format": "reverse"}, "unknown format 'reverse'; did you mean 'reversed'"),
        ({"prompt": "ful"}, "unknown prompt 'ful'; did you mean 'full'"),
        ({"adaptive": True}, "adaptive needs num_digits=\\(fewest, most\\), got 2"),
        ({"adaptive": {"windw": 3}, "num_digits": (1, 3)}, "did you mean 'window'"),
        ({"adaptive": {"window": 0}, "num_digits": (1, 3)}, "window must be an integer >= 1"),
        ({"adaptive": "yes", "num_digits": (1, 3)}, "adaptive is True, False or a mapping, got"),
        ({"adaptive": {"raise_at": "1"}, "num_digits": (1, 3)}, "raise_at must be a number"),
        ({"adaptive": {"lower_at": 0.9}, "num_digits": (1, 3)}, "lower_at must be below"),
        ({"max_turn": 2}, "unknown setting 'max_turn'; did you mean 'max_turns'"),
    ],
)
def test_wrong_settings_get_one_clear_line(settings, message):
    with pytest.raises(SettingsError, match=message) as caught:
        ArithmeticEnv(**settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "symbol"), [("a b", "+"), ("x", ""), ("x", "2"), ("x", ":")])
def test_operations_that_make_ids_ambiguous_are_refused(name, symbol):
    with pytest.raises(SettingsError, match="operation's"):
        Operation(name, symbol, max, lambda n: n)


def test_difficulty_rises_and_falls_with_the_success_rate():
    difficulty = AdaptiveDifficulty((1, 3), window=4, raise_at=0.75, lower_at=0.25)
    levels = []
    for success in map(int, "111011111111000100000000"):
        difficulty.record(bool(success))
        levels.append(difficulty.level)
    assert levels == [1] * 3 + [2] * 4 + [3] * 7 + [2] * 4 + [1] * 6


def test_difficulty_slides_between_the_thresholds():
    difficulty = AdaptiveDifficulty((1, 3), window=2, raise_at=1.0, lower_at=0.0)
    changed = [difficulty.record(success) for success in (True, False, True, True)]
    assert changed == [False, False, False, True]


def play(env, successes):
    levels = []
    for success in successes:
        env.reset()
        env.step(env.task.answer if success else "x")
        levels.append(env.difficulty)
    return levels


def test_the_env_asks_harder_problems_after_successes():
    env = ArithmeticEnv(num_digits=(1, 3), adaptive={"window": 5}, format="reversed")
    assert play(env, [True] * 15) == [1] * 4 + [2] * 5 + [3] * 6
    env.reset()
    assert env.task.num_digits == env.task.width == 3
    assert play(env, [False] * 5)[-1] == 2


def test_difficulty_ignores_given_tasks_of_another_level():
    env = ArithmeticEnv(num_digits=(1, 3), adaptive={"window": 1})
    env.reset(options={"task": "addition:100+200:plain"})
    env.step("300")
    assert env.difficulty == 1
    assert ArithmeticEnv().difficulty is None


def test_make_task_names_its_skills():
    task = make_task(get_operation("addition"), 7, 120, None)
    assert task.skills == ("addition", "3_digits")


@pytest.mark.parametrize(
    ("task_id", "lapse"),
    [
        ("addition:12+34:plain", "460"),  # 21 + 43
        ("addition:12+34:reversed", "64"),  # shown as 21+43
        ("subtraction:32-14:plain", "81-"),  # 23 - 41
        ("subtraction:32-14:reversed", "-18"),  # shown as 23-41
        ("multiplication:12*03:worked", "630"),  # shown as 21*30
        ("modulo:20%3:plain", "20"),  # 2 % 3
        ("modulo:42%10:reversed", "0"),  # shown as 24%01
    ],
)
def test_an_oracle_that_lapses_reads_numbers_the_other_way_round(task_id, lapse):
    right, wrong = ArithmeticEnv(), ArithmeticEnv(oracle_lapses=1.0)
    task = right.task_source.get(task_id)
    assert wrong.oracle_actions(task) == [lapse]
    wrong.reset(options={"task": task})
    assert wrong.step(lapse)[4]["is_success"] == (right.oracle_actions(task) == [lapse])


def test_the_oracle_lapses_in_its_share_of_tasks_and_always_in_the_same():
    often = ArithmeticEnv(oracle_lapses=0.3)
    tasks = list(Taskset.generate(often.task_source, 600, seed=0))
    lapsed = [often.oracle_actions(task) != [task.answer] for task in tasks]
    assert 0.24 < np.mean(lapsed) < 0.36
    assert lapsed == [often.oracle_actions(task) != [task.answer] for task in tasks]
    with pytest.raises(SettingsError, match="oracle_lapses must be a number from 0 to 1"):
        ArithmeticEnv(oracle_lapses=2)


@pytest.mark.parametrize(
    ("num_omitted", "action"),
    [(0, "8400+0630=8040"), (3, "0+0630=8040"), (10, "8040"), (99, "8040")],
)
def test_an_oracle_that_omits_working_is_right_all_the_same(num_omitted, action):
    options = {"operations": ["multiplication"], "format": "worked"}
    env = ArithmeticEnv(**options, oracle_omits=num_omitted)
    env.reset(options={"task": "multiplication:12*34:worked"})
    assert env.oracle_actions(env.task) == [action]
    assert env.step(action)[1] == 1.0


@pytest.mark.parametrize("num_omitted", [0, 4])
def test_a_share_of_the_tasks_omits_more_and_the_same_share_of_these_yet_more(num_omitted):
    options = {"operations": ["multiplication"], "format": "worked", "oracle_omits": num_omitted}
    env = ArithmeticEnv(**options, oracle_omits_more=0.3)
    tasks = env.task_source.generate_batch(np.random.default_rng(0), 3000)
    actions = [env.oracle_actions(task)[0] for task in tasks]
    kept = [task.work + task.answer for task in tasks]
    assert all(text.endswith(action) for text, action in zip(kept, actions, strict=True))
    more = Counter(14 - num_omitted - len(action) for action in actions)
    for number in range(4):
        assert more[number] / 3000 == pytest.approx(0.7 * 0.3**number, abs=0.025)
    assert actions == [env.oracle_actions(task)[0] for task in tasks]


def test_where_every_task_omits_more_no_working_is_left():
    options = {"operations": ["multiplication"], "format": "worked", "oracle_omits_more": 1.0}
    env = ArithmeticEnv(**options)
    env.reset(options={"task": "multiplication:12*34:worked"})
    assert env.oracle_actions(env.task) == ["8040"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"oracle_omits": -1, "format": "worked"}, "oracle_omits must be"),
        ({"oracle_omits": 1}, "oracle_omits needs format='worked'"),
        ({"oracle_omits_more": 1.5, "format": "worked"}, "oracle_omits_more must be"),
        ({"oracle_omits_more": 0.5}, "oracle_omits_more needs format='worked'"),
        ({"oracle_omits": 1, "format": "worked"}, "and an operation with working"),  # addition
    ],
)
def test_what_is_omitted_is_a_number_of_characters_of_working(options, message):
    with pytest.raises(SettingsError, match=message):
        ArithmeticEnv(**options)
