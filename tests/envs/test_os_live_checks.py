"""Third-party tasks whose checks look at processes: gold commands succeed, and to do nothing fails.

The tasks are of our own making, in LifelongAgentBench's format.
"""

import json
from collections.abc import Iterator

import pytest

from agentpeft.envs import DataError, SettingsError
from agentpeft.envs.os_interaction.actions import command_action, finish_action
from agentpeft.envs.os_interaction.entries import to_entry
from agentpeft.envs.os_interaction.env import OSInteractionEnv
from agentpeft.envs.os_interaction.loaders import load_tasks

pytestmark = pytest.mark.slow

MONITOR = """\
useradd -m worker
cat >/srv/monitor.sh <<'END'
#!/bin/bash
while true; do
  date >>/srv/log
  sleep 1
done
END
chmod 755 /srv/monitor.sh; touch /srv/log; chmod 666 /srv/log
"""
RUNNING = MONITOR + "nohup /srv/monitor.sh >/dev/null 2>&1 &"
STARTED = "until [ -s /srv/log ]; do sleep 0.1; done"
"""The monitor has written: its program, user and niceness are now what a check asks for."""
PYTHON_CHECK = """\
from __future__ import annotations
import os, subprocess, sys, time
assert subprocess.run(["pgrep", "-f", "monitor.sh"]).returncode == 0
before = os.path.getsize("/srv/log")
time.sleep(2.5)
sys.exit(os.path.getsize("/srv/log") <= before)
"""
CLASSES = {
    "pgrep -f": (
        MONITOR,
        "nohup /srv/monitor.sh >/dev/null 2>&1 & " + STARTED,
        "pgrep -f monitor.sh",
    ),
    "/proc of a pid file": (
        MONITOR,
        "cd /srv; ./monitor.sh & echo $! >/srv/pid; " + STARTED,
        "PID=$(cat /srv/pid) && [ -d /proc/$PID ] && grep -q monitor.sh /proc/$PID/cmdline",
    ),
    "kill -0 of a pid file": (
        MONITOR,
        "setsid bash /srv/monitor.sh >/dev/null 2>&1 </dev/null & echo $! >/srv/pid",
        "kill -0 `cat /srv/pid`",
    ),
    "a file that comes later": (
        MONITOR,
        "(sleep 2; echo done >/srv/done) & disown",
        "[ ! -f /srv/done ] && sleep 4; [ -f /srv/done ]",
    ),
    "a file that grows": (
        MONITOR,
        "nohup bash -c 'while :; do date >>/srv/log; sleep 0.3; done' >/dev/null 2>&1 &",
        "a=$(wc -l </srv/log); sleep 2; [ $(wc -l </srv/log) -gt $((a + 2)) ]",
    ),
    "waiting in a loop": (
        MONITOR,
        "(sleep 2; touch /srv/done) &",
        "for i in $(seq 5); do [ -f /srv/done ] && exit 0; sleep 1; done; exit 1",
    ),
    "ps aux | grep": (
        MONITOR,
        "/srv/monitor.sh & disown; " + STARTED,
        "ps aux | grep -v grep | grep monitor",
    ),
    "another user's": (
        MONITOR,
        "su worker -c '/srv/monitor.sh >/dev/null 2>&1 &'; " + STARTED,
        "pgrep -u worker -f monitor.sh && ! pgrep -u root -f monitor.sh",
    ),
    "by name": (
        MONITOR,
        "sleep 1000 & until pgrep -x sleep; do :; done",
        "pgrep -x sleep && [ $(pgrep -cx sleep) = 1 ]",
    ),
    "niceness": (
        MONITOR,
        "nice -n 19 /srv/monitor.sh & " + STARTED,
        '[ "$(ps -o ni= -p $(pgrep -f monitor.sh))" -eq 19 ]',
    ),
    "stopped": (
        RUNNING,
        "until pkill -STOP -f monitor.sh; do sleep 0.1; done",
        "ps -o stat= -p $(pgrep -f monitor.sh) | grep -q T",
    ),
    "ended": (
        RUNNING,
        "until pkill -f monitor.sh; do sleep 0.1; done",
        "! pgrep -f monitor.sh",
    ),
}
VI = {
    "call append": """vi -c 'call append(0, "first")' -c 'wq' /srv/notes""",
    "call append at the end": """vi -c "call append(line('$'), 'last')" -c ':wq' /srv/notes""",
    "ex mode": """vi -es -c 'call append(1, "second")' -c 'wq' /srv/notes""",
    "normal mode": "vi -es -c 'normal Gofourth' -c 'wq' /srv/notes",
}


def entry(setup, gold, check, language="bash"):
    """Returns a task as LifelongAgentBench has it."""
    return {
        "instruction": "Do it.",
        "initialization_command_item": {"command_name": "bash", "script": setup},
        "evaluation_info": {
            "evaluation_command_item": {"command_name": language, "script": check},
            "ground_truth_command_item": {"command_name": "bash", "script": gold},
        },
        "skill_list": ["sleep"],
    }


def all_entries():
    """Returns an entry of each class, by name."""
    entries = {name: entry(*scripts) for name, scripts in CLASSES.items()}
    entries["a check in Python"] = entry(
        MONITOR, "/srv/monitor.sh & " + STARTED, PYTHON_CHECK, "python"
    )
    for name, gold in VI.items():
        grown = "[ $(wc -l </srv/notes) = 3 ] && [ $(grep -c old /srv/notes) = 2 ]"
        entries[f"vi: {name}"] = entry("printf 'old\\nold\\n' >/srv/notes", gold, grown)
    return entries


ENTRIES = all_entries()


@pytest.fixture(scope="module")
def env(sandbox_kind, tmp_path_factory) -> Iterator[OSInteractionEnv]:
    """The classes' tasks."""
    path = tmp_path_factory.mktemp("lab") / "entry_dict.json"
    path.write_text(json.dumps(ENTRIES))
    made = OSInteractionEnv(data=path, sandbox=sandbox_kind)
    yield made
    made.close()


@pytest.mark.parametrize("name", ENTRIES)
def test_gold_commands_succeed_and_nothing_fails(env, name):
    for does_gold in (True, False):
        env.reset(options={"task": name})
        if does_gold:
            gold = ENTRIES[name]["evaluation_info"]["ground_truth_command_item"]["script"]
            env.step(command_action(gold))
        _, _, is_over, _, info = env.step(finish_action(None))
        assert is_over
        outcome = str(info["outcome"])
        assert outcome == ("success" if does_gold else "failure"), env.mistake


def test_checks_that_look_at_processes_are_live_and_others_are_not(tmp_path):
    path = tmp_path / "entry_dict.json"
    path.write_text(json.dumps(ENTRIES))
    assert {task.task_id for task in load_tasks(path) if not task.verdict.is_live} == {
        name for name in ENTRIES if name.startswith("vi: ")
    }
    assert all(task.verdict.is_live for task in load_tasks(path, live_checks=True))
    assert not any(task.verdict.is_live for task in load_tasks(path, live_checks=False))


@pytest.mark.parametrize("live_checks", [None, True, False])
def test_the_setting_survives_the_round_trip(live_checks, tmp_path):
    path, copy = tmp_path / "entry_dict.json", tmp_path / "copy.json"
    path.write_text(json.dumps(ENTRIES))
    tasks = load_tasks(path, live_checks=live_checks)
    copy.write_text(json.dumps({task.task_id: to_entry(task) for task in tasks}))
    assert list(load_tasks(copy)) == list(tasks)


def test_the_setting_needs_a_file_and_is_checked(tmp_path):
    with pytest.raises(SettingsError, match="live_checks=True is for the tasks of a file"):
        OSInteractionEnv(live_checks=True)
    path = tmp_path / "entry_dict.json"
    path.write_text(json.dumps(ENTRIES))
    with pytest.raises(SettingsError, match="live_checks must be True, False or None"):
        OSInteractionEnv(data=path, live_checks="yes")


def test_a_verdict_that_is_only_live_says_nothing(tmp_path):
    row = entry("", "", "true")
    row["evaluation_info"] |= {"evaluation_command_item": None, "verdict": {"is_live": True}}
    path = tmp_path / "entry_dict.json"
    path.write_text(json.dumps({"0": row}))
    with pytest.raises(DataError, match="nothing that says what is right"):
        load_tasks(path)
