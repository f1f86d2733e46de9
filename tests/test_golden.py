"""Tasks, prompts, rewards, ids and options are what `golden.json` has."""

import json

import golden
import pytest

RECORD = json.loads(golden.RECORD.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", golden.MAKE)
def test_registered_ids_and_the_help_of_commands_are_as_recorded(name):
    assert golden.MAKE[name]() == RECORD[name]


@pytest.mark.parametrize("env_id", [name for name in golden.GAMES if "OS" not in name])
def test_tasks_and_prompts_of_a_seed_are_as_recorded(env_id):
    assert golden.draw_tasks(env_id) == RECORD["tasks"][env_id]


def test_tasks_and_prompts_of_shells_are_as_recorded(any_sandbox):
    env_id = "AgentPEFT/OSInteraction-v0"
    assert golden.draw_tasks(env_id) == RECORD["tasks"][env_id]


def test_a_real_model_s_episodes_are_rewarded_as_recorded(shared_data):
    assert golden.replay_episodes() == RECORD["episodes"]
