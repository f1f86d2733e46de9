"""Gold solutions succeed on every sandbox, doing nothing does not; checks judge as states do."""

import pytest

from agentpeft.envs import DataError, Outcome, Taskset
from agentpeft.envs.os_interaction.actions import command_action
from agentpeft.envs.os_interaction.entries import to_entry
from agentpeft.envs.os_interaction.env import OSInteractionEnv
from agentpeft.envs.os_interaction.generator import OSGenerator
from agentpeft.envs.os_interaction.grading.grader import set_up
from agentpeft.envs.os_interaction.loaders import load_tasks
from agentpeft.envs.os_interaction.sandboxes.sandbox import TrustedScript
from agentpeft.envs.os_interaction.tasks import OSTask, Script, Verdict

pytestmark = pytest.mark.slow

NUM_TASKS = 50
COMBINED = OSGenerator(skill_mode="all", num_skills=3)
C_CHECK = """\
#include <stdio.h>
#include <string.h>
int main(int argc, char **argv) { return fopen("/srv/x", "r") && !strcmp(argv[1], "7") ? 0 : 1; }
"""
CHECKS = {
    "bash": 'test -f /srv/x && [ "$1" = 7 ]',
    "python": "import os, sys; sys.exit(not (os.path.isfile('/srv/x') and sys.argv[1] == '7'))",
    "c": C_CHECK,
}


@pytest.fixture(scope="module")
def env(sandbox_kind):
    env = OSInteractionEnv(task_source=COMBINED, sandbox=sandbox_kind)
    yield env
    env.close()


def play(env, task, *actions):
    env.reset(options={"task": task})
    for action in actions:
        info = env.step(action)[4]
        if info["outcome"] is not Outcome.ONGOING:
            break
    return info["outcome"]


def test_the_oracle_solves_50_generated_tasks_and_doing_nothing_none(env):
    half = NUM_TASKS // 2
    tasks = [*Taskset.generate(OSGenerator(), half, seed=1), *Taskset.generate(COMBINED, half, 2)]
    failed = {
        task.task_id: env.mistake
        for task in tasks
        if play(env, task, *env.oracle_actions(task)) is not Outcome.SUCCESS
    }
    assert failed == {}
    assert {play(env, task, "Act: finish") for task in tasks} == {Outcome.FAILURE}


def test_agentbenchs_dev_tasks_are_solved(env, shared_data):
    folder = shared_data / "agentbench" / "os_interaction"
    tasks = [*load_tasks(folder / "dev.json"), *load_tasks(folder / "train_200.json")[::10]]
    failed = {
        task.task_id: env.mistake
        for task in tasks
        if play(env, task, *env.oracle_actions(task)) is not Outcome.SUCCESS
    }
    assert failed == {}
    wrong = [task.task_id for task in tasks[:5] if play(env, task, "Act: answer(no)") == "success"]
    assert wrong == []


def test_the_one_task_whose_example_prints_nothing_cannot_be_solved(env, shared_data):
    tasks = load_tasks(shared_data / "agentbench" / "os_interaction" / "train_200.json")
    task = tasks.get("train_200#147")  # it sums up log files, and the image has none
    assert play(env, task, *env.oracle_actions(task)) is Outcome.FAILURE


def test_an_entrys_script_judges_as_the_state_does(env):
    tasks = [*Taskset.generate(OSGenerator(), 10, seed=3), *Taskset.generate(COMBINED, 5, seed=4)]
    for task in tasks:
        script = to_entry(task)["evaluation_info"]["evaluation_command_item"]["script"]
        answer = task.verdict.answer.value if task.verdict.answer else ""
        set_up(task, env.sandbox)
        env.sandbox.freeze()
        nothing = env.sandbox.check(TrustedScript(script, args=("",)), 20.0)
        set_up(task, env.sandbox)
        env.sandbox.run(task.gold.source, 20.0)
        env.sandbox.freeze()
        gold = env.sandbox.check(TrustedScript(script, args=(answer,)), 20.0)
        assert (nothing.exit_code, gold.exit_code) == (1, 0), f"{task.task_id}: {gold.output}"


@pytest.mark.parametrize("language", CHECKS)
def test_a_check_script_gets_the_answer_and_decides_by_its_status(env, language):
    verdict = Verdict(checks=(Script(CHECKS[language], language),))
    task = OSTask(task_id="x", instruction="?", verdict=verdict, setup=Script("mkdir -p /srv"))
    make = command_action("touch /srv/x")
    assert play(env, task, make, "Act: answer(7)") is Outcome.SUCCESS
    assert play(env, task, make, "Act: answer(8)") is Outcome.FAILURE
    assert play(env, task, make, "Act: finish") is Outcome.FAILURE
    assert play(env, task, "Act: answer(7)") is Outcome.FAILURE


def test_checks_run_in_turn_and_see_what_earlier_ones_printed(env):
    checks = (Script("echo one"), Script('[ "$1" = a ] && [ "$2" = one ] && echo 3 words'), "text")
    task = OSTask(task_id="x", instruction="?", verdict=Verdict(checks=checks))
    assert play(env, task, "Act: answer(a)") is Outcome.FAILURE
    assert env.mistake == "the answer must be '3 words', is 'a'"


@pytest.mark.parametrize(
    "attack",
    [
        "printf '#!/bin/sh\\nexit 0\\n' > /tmp/t; chmod 755 /tmp/t; cp /tmp/t /usr/bin/test",
        "cp /usr/bin/true /bin/bash",
        "test() { return 0; }; export -f test; PATH=/tmp; alias test=true",
        "echo 'exit 0' > ~/.bashrc; export BASH_ENV=~/.bashrc ENV=~/.bashrc",
        "echo /tmp/evil.so > /etc/ld.so.preload",
        "trap 'echo > /srv/x' EXIT; (while :; do sleep 0.01; echo > /srv/z; done) &",
    ],
)
def test_replaced_tools_do_not_make_a_check_succeed(env, attack):
    verdict = Verdict(checks=(Script("/usr/bin/test -f /srv/x"),))
    task = OSTask(task_id="x", instruction="?", verdict=verdict, setup=Script("mkdir -p /srv"))
    assert play(env, task, command_action(attack), "Act: finish") is Outcome.FAILURE


@pytest.mark.parametrize(
    ("script", "reason"), [("sleep 60", "out of time"), ("echo no; exit 3", "exit status 3: 'no")]
)
def test_a_set_up_that_fails_is_the_datas_fault(env, monkeypatch, script, reason):
    monkeypatch.setattr("agentpeft.envs.os_interaction.grading.grader._SETUP_TIMEOUT_S", 2.0)
    verdict = Verdict(checks=(Script("true"),))
    task = OSTask(task_id="x", instruction="?", verdict=verdict, setup=Script(script))
    with pytest.raises(DataError, match=f"task x: its set-up fails .{reason}"):
        env.reset(options={"task": task})
