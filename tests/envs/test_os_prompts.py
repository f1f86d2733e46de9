"""What an episode of OS-interaction begins with."""

import pytest

from agentpeft.envs.os_interaction.prompts import render_prompt

ENDS = {"invalid": True, "timeout": False}


def test_a_compact_prompt_is_the_task_and_one_line():
    assert render_prompt("Create /srv/x.", "compact", 5, 20.0, ENDS) == (
        "Create /srv/x.\n"
        '5 turns: "Act: bash" with a ```bash block, "Act: answer(...)" or "Act: finish"'
    )


@pytest.mark.parametrize(
    ("max_turns", "ends", "words"),
    [
        (5, ENDS, ("You have 5 turns;", "may take 20 seconds; over them it is killed.")),
        (1, ENDS, ("You have 1 turn;", "ends the task in failure")),
        (8, {"invalid": False, "timeout": True}, ("costs a turn", "killed, and the task has")),
    ],
)
def test_a_full_prompt_states_the_rules_that_hold(max_turns, ends, words):
    prompt = render_prompt("Create {x}.", "full", max_turns, 20.0, ends)
    assert prompt.endswith("Task: Create {x}.")
    assert all(part in prompt for part in words)
    assert "{" not in prompt.replace("{x}", "")
