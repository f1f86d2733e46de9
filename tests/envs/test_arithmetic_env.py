"""AgentPEFT/Arithmetic-v0 as an environment."""

import itertools
import json

import gymnasium
import numpy as np
import pytest

from agentpeft.envs import Outcome, Taskset, check_text_env

ENV_ID = "AgentPEFT/Arithmetic-v0"
MIXED = ["addition", "subtraction", "multiplication"]


@pytest.mark.parametrize(
    ("number_format", "adaptive", "prompt", "max_turns"),
    list(
        itertools.product(
            ["plain", "reversed", "worked"], [False, True], ["full", "compact"], [1, 3]
        )
    ),
)
def test_every_combination_keeps_the_contract(number_format, adaptive, prompt, max_turns):
    env = gymnasium.make(
        ENV_ID,
        operations=MIXED,
        num_digits=[1, 4],
        format=number_format,
        adaptive=adaptive,
        prompt=prompt,
        max_turns=max_turns,
    )
    check_text_env(env)


@pytest.mark.parametrize("number_format", ["plain", "reversed", "worked"])
def test_the_oracle_solves_2000_tasks(number_format):
    env = gymnasium.make(
        ENV_ID, operations=MIXED, num_digits=(1, 6), format=number_format
    ).unwrapped
    for task in Taskset.generate(env.task_source, 2000, seed=7):
        env.reset(options={"task": task})
        assert env.step(*env.oracle_actions(task))[1] == 1.0


PLAIN = "addition:12+34:plain"
REVERSED = "addition:12+34:reversed"  # 21+43= -> 640
WORKED = "multiplication:12*34:worked"  # 21*43= -> 8400+0630=8040


@pytest.mark.parametrize(
    ("task_id", "action", "outcome"),
    [
        (PLAIN, "46", Outcome.SUCCESS),
        (PLAIN, " 46\n", Outcome.SUCCESS),
        (PLAIN, "45", Outcome.FAILURE),
        (PLAIN, "-46", Outcome.FAILURE),
        (PLAIN, "64", Outcome.FAILURE),
        (PLAIN, "046", Outcome.INVALID_ACTION),
        (PLAIN, "+46", Outcome.INVALID_ACTION),
        (PLAIN, "46.0", Outcome.INVALID_ACTION),
        (PLAIN, "4 6", Outcome.INVALID_ACTION),
        (PLAIN, "45 46", Outcome.INVALID_ACTION),
        (PLAIN, "12+34", Outcome.INVALID_ACTION),
        (PLAIN, "12+34=46", Outcome.INVALID_ACTION),
        (REVERSED, "21+43=640", Outcome.INVALID_ACTION),
        (WORKED, "8400+0630=8040", Outcome.SUCCESS),
        (WORKED, "8040", Outcome.SUCCESS),
        (WORKED, "what = ever = 8040\n", Outcome.SUCCESS),
        (WORKED, "8040=8041", Outcome.FAILURE),
        (WORKED, "8040=", Outcome.INVALID_ACTION),
        (WORKED, "8400+0630", Outcome.INVALID_ACTION),
        (PLAIN, "٤٦", Outcome.INVALID_ACTION),
        (PLAIN, "", Outcome.INVALID_ACTION),
        (PLAIN, "9" * 60_000, Outcome.FAILURE),
        (REVERSED, "640", Outcome.SUCCESS),
        (REVERSED, "64", Outcome.FAILURE),
        (REVERSED, "046", Outcome.FAILURE),
        (REVERSED, "-640", Outcome.INVALID_ACTION),
    ],
)
def test_grading_is_by_exact_match(task_id, action, outcome):
    env = gymnasium.make(ENV_ID)
    env.reset(options={"task": task_id})
    _, reward, terminated, _, info = env.step(action)
    assert info["outcome"] is outcome and terminated
    assert reward == float(outcome is Outcome.SUCCESS)


def test_a_wrong_answer_may_be_tried_again_until_the_last_turn():
    env = gymnasium.make(ENV_ID, max_turns=2)
    env.reset(options={"task": PLAIN})
    assert env.step("45")[0] == "Wrong. Try again."
    assert env.step("46")[4]["outcome"] is Outcome.SUCCESS
    env.reset(options={"task": PLAIN})
    env.step("45")
    assert env.step("44")[4]["outcome"] is Outcome.FAILURE


def test_an_invalid_action_can_cost_a_turn_instead():
    env = gymnasium.make(ENV_ID, max_turns=2, invalid_ends=False)
    env.reset(seed=0)
    assert env.step("?")[4]["outcome"] is Outcome.ONGOING
    assert env.step("?")[4]["outcome"] is Outcome.TURN_LIMIT


@pytest.mark.parametrize(
    ("settings", "task_id", "prompt"),
    [
        ({"prompt": "compact"}, PLAIN, "1 try: 12+34="),
        ({"prompt": "compact", "max_turns": 3}, REVERSED, "3 tries: 21+43="),
        ({"prompt": "named"}, PLAIN, "1 try, plain: 12+34="),
        ({"prompt": "named", "max_turns": 3}, REVERSED, "3 tries, reversed: 21+43="),
        (
            {},
            PLAIN,
            "Compute 12+34=\nReply with the number alone: digits, no zeros in front, a minus sign "
            "if negative.\nYou have 1 try.",
        ),
    ],
)
def test_prompts_state_task_syntax_and_turns(settings, task_id, prompt):
    env = gymnasium.make(ENV_ID, **settings)
    assert env.reset(options={"task": task_id})[0] == prompt


def test_the_reversed_prompt_says_how_numbers_are_written():
    prompt, _ = gymnasium.make(ENV_ID).reset(options={"task": REVERSED})
    assert "12 as 4 digits is 2100" in prompt and "the 3 digits of the result" in prompt


def test_the_oracle_shows_the_partial_products_where_there_is_room():
    env = gymnasium.make(ENV_ID, format="worked").unwrapped
    for task_id, action in (
        (WORKED, "8400+0630=8040"),
        ("multiplication:99*07:worked", "3960+0000=3960"),
        ("addition:12+34:worked", "640"),
    ):
        prompt, _ = env.reset(options={"task": task_id})
        assert list(env.oracle_actions(env.task)) == [action]
        assert "behind your working" in prompt or env.task.work == ""


def random_action(rng, answer):
    kind = rng.integers(4)
    if kind == 0:
        return "".join(map(chr, rng.integers(0, 0xD7FF, rng.integers(0, 20))))
    characters = list(answer + " ")
    characters[rng.integers(len(characters))] = str(rng.choice(list("0123456789-+. \n٣\ud800")))
    return "".join(characters) * int(kind)


def test_random_and_mutated_actions_never_raise():
    env = gymnasium.make(
        ENV_ID, operations=MIXED, num_digits=(1, 3), max_turns=2, invalid_ends=False
    )
    rng = np.random.default_rng(0)
    is_over = True
    for _ in range(20_000):
        if is_over:
            env.reset(seed=int(rng.integers(1000)))
        obs, _, is_over, _, info = env.step(random_action(rng, env.unwrapped.task.answer))
        assert obs in env.observation_space and (is_over or info["num_turns"] < 2)


def test_specs_survive_json_and_make_vec_plays():
    env = gymnasium.make(ENV_ID, operations=MIXED, num_digits=[1, 2], adaptive={"window": 9})
    spec = gymnasium.envs.registration.EnvSpec.from_json(json.loads(json.dumps(env.spec.to_json())))
    assert gymnasium.make(spec).reset(seed=4)[0] == env.reset(seed=4)[0]
    vector = gymnasium.make_vec(ENV_ID, num_envs=3)
    vector.reset(seed=0)
    answers = [one.unwrapped.task.answer for one in vector.envs]
    assert vector.step(answers)[1].tolist() == [1.0, 1.0, 1.0]
    vector.close()
