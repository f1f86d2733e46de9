"""An agent who breaks what its next shell needs has failed: it makes no fault, and spoils no later
episode."""

import shlex
from collections.abc import Iterator
from itertools import cycle

import pytest
from small_sandbox import SMALL

from agentpeft.envs import Outcome, Taskset
from agentpeft.envs.os_interaction.actions import command_action, finish_action
from agentpeft.envs.os_interaction.env import OSInteractionEnv
from agentpeft.envs.os_interaction.grading.state import FileState, State
from agentpeft.envs.os_interaction.sandboxes.sandbox import SandboxKind
from agentpeft.envs.os_interaction.tasks import OSTask, Script, Verdict

pytestmark = pytest.mark.slow

NEEDED = {
    "the shell": "/usr/bin/bash",
    "the first of the links to it": "/bin",
    "the loader": "/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2",
    "the C library": "/usr/lib/x86_64-linux-gnu/libc.so.6",
    "the shell's library": "/usr/lib/x86_64-linux-gnu/libtinfo.so.6",
    "the other shell": "/usr/bin/dash",
    "Python": "/usr/bin/python3",
    "Python's library": "/usr/lib/python3.11",
    "nothing": "/dev/null",
    "the terminals": "/dev",
    "the home": "/root",
    "the temporary files": "/tmp",
    "the accounts": "/etc/passwd",
}
"""What is broken: files and folders that shells are started with."""

BREAKING = {
    "is gone": "",
    "is a program that ends": "shutil.copy(true, path)",
    "is a program that hangs": "shutil.copy(sleep, path)",
    "is a program that floods": "shutil.copy(yes, path)",
    "is empty": "write(path, b'')",
    "is no program": "write(path, bytes(range(256)) * 99)",
    "is a script": "write(path, b'#!/bin/true\\n')",
    "is a script of itself": "write(path, b'#!' + path.encode() + b'\\n')",
    "is a folder": "os.mkdir(path)",
    "is a pipe": "os.mkfifo(path)",
    "is a link to itself": "os.symlink(path, path)",
    "is a link to nothing": "os.symlink('/nothing', path)",
    "is a device that never ends": "os.symlink('/dev/zero', path)",
}
"""What is put in its place, with what Python has in memory."""

BREAK = """
import os, shutil
true, sleep, yes, path = "/a/true", "/a/sleep", "/a/yes", {path!r}
os.mkdir("/a")
for program in ("true", "sleep", "yes"):
    shutil.copy("/bin/" + program, "/a")
def write(path, data):
    with open(path, "wb") as file:
        file.write(data)
    os.chmod(path, 0o755)
try:
    os.rename(path, "/a/old")
except OSError:
    try:
        os.unlink(path)
    except OSError as error:
        print(error)
{breaking}
"""

OTHERWISE = {
    "no right to anything": "chmod 000 / /usr /usr/bin /usr/bin/bash /tmp /root /dev",
    "no right to the shell": "chmod 000 /usr/bin/bash",
    "a shell of another": "chown nobody /usr/bin/bash; chmod 4700 /usr/bin/bash",
    "a directory that is gone": "mkdir /d; cd /d; rm -rf /d",
    "no descriptor": "prlimit --pid 1 --nofile=3:3",
    "no descriptor at all": "prlimit --pid 1 --nofile=0:0",
    "no process": "prlimit --pid 1 --nproc=0:0",
    "no file": "prlimit --pid 1 --fsize=0:0",
    "no memory": "prlimit --pid 1 --as=0:0",
    "no data": "prlimit --pid 1 --data=0:0",
    "no stack": "prlimit --pid 1 --stack=0:0",
    "no time": "prlimit --pid 1 --cpu=0:0",
    "no signals": "prlimit --pid 1 --sigpending=0:0",
    "limits of its own": "ulimit -u 1; ulimit -n 5; ulimit -f 0; ulimit -v 1000",
    "processes that are used up": "for i in {1..100}; do sleep 60 & done 2>/dev/null",
    "processes that never end": "trap '' TERM INT HUP; for i in {1..100}; do sleep 60 & done",
    "processes of other users": "for i in {1..40}; do setpriv --reuid=$i sleep 60 & done",
    "numbers that begin again": "for i in {1..300}; do (:); done",
    "a full disk": "head -c 99M /dev/zero >/full",
    "files that are used up": "mkdir /f; touch /f/{1..1500}",
    "folders without end": "cd /tmp; for i in {1..300}; do mkdir d; cd d; done; touch x",
    "an input of others": "for fd in /proc/$$/fd/*; do head -c 99K /dev/zero >$fd & done",
    "a start file": "echo exit >~/.bashrc; cp ~/.bashrc /etc/bash.bashrc",
    "a library in front": "echo /lib/nothing.so >/etc/ld.so.preload",
    "libraries elsewhere": "echo /nothing >/etc/ld.so.conf; ldconfig; rm -f /etc/ld.so.cache",
    "signals for all": "(while :; do kill -KILL -1; done) & kill -9 $$",
    "a stop": "kill -STOP $$ & kill -STOP -1; kill -STOP 1",
}
"""What else may be in the way of the next shell."""


def sabotage(path: str, breaking: str) -> str:
    return f"python3 -c {shlex.quote(BREAK.format(path=path, breaking=breaking))}\nexit"


STEPS = {"the shell": 1, "the loader": 3, "the C library": 3}
"""Of what is broken in every way; all else in every sixth."""
SABOTAGES = {
    **{
        what: [sabotage(path, each) for each in list(BREAKING.values())[:: STEPS.get(what, 6)]]
        for what, path in NEEDED.items()
    },
    **{how: [f"{command}\nexit"] for how, command in OTHERWISE.items()},
    **{f"{how}, no exit": [OTHERWISE[how]] for how in OTHERWISE if "--pid 1" in OTHERWISE[how]},
}

SET_UP = Script("mkdir -p /srv; echo wrong >/srv/answer; touch /srv/old")
RIGHT = State(files=(FileState("/srv/answer", content="right"),))
GONE = State(files=(FileState("/srv/old", kind="absent"),))
CHECK = Script("! test -e /srv/old")


def make_task(name: str, verdict: Verdict, gold: Script | None = None) -> OSTask:
    return OSTask(task_id=name, instruction="Do it.", verdict=verdict, setup=SET_UP, gold=gold)


TASKS = [
    make_task("state", Verdict(RIGHT)),
    make_task("gone", Verdict(GONE)),
    make_task("check", Verdict(checks=(CHECK,))),
    make_task("live", Verdict(checks=(CHECK,), is_live=True)),
    make_task("innocent", Verdict(RIGHT), Script("echo right >/srv/answer")),
]


GOALS = [task.task_id for task in TASKS[:-1]]


@pytest.fixture(scope="module")
def env(sandbox_kind: SandboxKind) -> Iterator[OSInteractionEnv]:
    """Small limits, and a second for a command."""
    made = OSInteractionEnv(
        task_source=Taskset(TASKS),
        sandbox=sandbox_kind,
        limits=SMALL,
        command_timeout_s=1.0,
        timeout_ends=False,
    )
    yield made
    made.close()


def play(env: OSInteractionEnv, task: str, *messages: str) -> Outcome:
    env.reset(options={"task": task})
    for message in messages:
        info = env.step(message)[4]
    return Outcome(info["outcome"])


def play_innocent(env: OSInteractionEnv) -> Outcome:
    return play(env, "innocent", *env.oracle_actions(TASKS[-1]))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("what", SABOTAGES)
def test_who_breaks_the_shell_has_failed_and_the_next_episode_is_fine(env, what: str):
    go_on = command_action("echo y >/srv/other; echo and on")
    for command, goal in zip(SABOTAGES[what], cycle(GOALS), strict=False):
        outcome = play(env, goal, command_action(command), go_on, finish_action(None))
        assert outcome is Outcome.FAILURE, (command, goal, env.mistake)
    assert play_innocent(env) is Outcome.SUCCESS


def test_agent_is_told_that_no_shell_can_be_started(sandbox):
    sandbox.run("rm /usr/bin/bash; exit", 5)
    result = sandbox.run("echo fine", 5)
    assert result.exit_code != 0
    assert "fine" not in result.output
    assert not sandbox.has_lost_files
    assert sandbox.freeze().stat("/usr/bin/bash") is None


@pytest.mark.parametrize("sandbox_kind", ["docker"], indirect=True)
@pytest.mark.parametrize("goal", GOALS)
@pytest.mark.parametrize(
    "command",
    ["head -c 15M /dev/zero >/1; cp /1 /2; cp /1 /3; sleep 3", "prlimit --pid 1 --as=0:0"],
)
def test_a_lost_machine_is_not_one_without_the_file(env, goal: str, command: str):
    """The files of a task's set-up are not in the new container either."""
    messages = [command_action(f"echo x >/srv/b; {command}") for _ in range(2)]
    assert play(env, goal, *messages, finish_action(None)) is Outcome.FAILURE
    assert play_innocent(env) is Outcome.SUCCESS
