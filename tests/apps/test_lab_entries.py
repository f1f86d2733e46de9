"""Entries for LifelongAgentBench's own code."""

import pytest

from agentpeft.apps.drivers.lab_entries import to_lab_entry
from agentpeft.envs import Taskset
from agentpeft.envs.os_interaction.generator import OSGenerator
from agentpeft.envs.os_interaction.grading.grader import set_up
from agentpeft.envs.os_interaction.sandboxes.sandbox import TrustedScript, make_sandbox
from agentpeft.envs.os_interaction.tasks import OSTask, Script, Verdict

CHECK = Script("test -f /srv/x")


def test_an_entry_with_one_script_keeps_it():
    task = OSTask(task_id="x", instruction="?", verdict=Verdict(checks=(CHECK,)))
    item = to_lab_entry(task)["evaluation_info"]["evaluation_command_item"]
    assert item == {"command_name": "bash", "script": CHECK.source}


@pytest.mark.slow
def test_an_entrys_script_judges_as_the_state_does(sandbox_kind):
    combined = OSGenerator(skill_mode="all", num_skills=3)
    tasks = [*Taskset.generate(OSGenerator(), 10, seed=3), *Taskset.generate(combined, 5, seed=4)]
    sandbox = make_sandbox(sandbox_kind)
    for task in tasks:
        script = to_lab_entry(task)["evaluation_info"]["evaluation_command_item"]["script"]
        answer = task.verdict.answer.value if task.verdict.answer else ""
        set_up(task, sandbox)
        sandbox.freeze()
        nothing = sandbox.check(TrustedScript(script, args=("",)), 20.0)
        set_up(task, sandbox)
        sandbox.run(task.gold.source, 20.0)
        sandbox.freeze()
        gold = sandbox.check(TrustedScript(script, args=(answer,)), 20.0)
        assert (nothing.exit_code, gold.exit_code) == (1, 0), f"{task.task_id}: {gold.output}"
    sandbox.close()
