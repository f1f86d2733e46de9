"""What the environment must do; `pytest test_sort_env.py` runs it."""

import pytest

from agentpeft.apps.init_env.sort_env import SortEnv
from agentpeft.envs import Outcome, check_text_env


def test_it_keeps_the_contract_of_text_environments() -> None:
    """Seeds, spaces, the oracle, the turn limit in the prompt: all that training relies on."""
    check_text_env(SortEnv())


@pytest.mark.parametrize(
    ("action", "outcome"),
    [("123", Outcome.SUCCESS), ("321", Outcome.TURN_LIMIT), ("one", Outcome.INVALID_ACTION)],
)
def test_an_action_has_the_outcome_that_it_deserves(action: str, outcome: Outcome) -> None:
    """The reward is 1 for success and 0 for all else."""
    env = SortEnv()
    env.reset(options={"task": "312"})
    _, reward, terminated, _, info = env.step(action)
    assert terminated and info["outcome"] is outcome
    assert reward == (1.0 if outcome is Outcome.SUCCESS else 0.0)


def test_no_task_is_in_both_splits() -> None:
    """So evaluation is on tasks that training cannot draw."""
    ids = {}
    for split in ("train", "test"):
        env = SortEnv(num_digits=3, split=split)
        ids[split] = {env.reset(seed=seed)[1]["task_id"] for seed in range(300)}
    assert not ids["train"] & ids["test"]
