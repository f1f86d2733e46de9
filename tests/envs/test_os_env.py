"""The OS-interaction environment on every sandbox: its contract, its turns, and their ends."""

import re
import time
import warnings

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

from agentpeft.envs import DataError, Outcome, SettingsError, Taskset, check_text_env
from agentpeft.envs.os_interaction.actions import command_action
from agentpeft.envs.os_interaction.env import OSInteractionEnv
from agentpeft.envs.os_interaction.grading.answers import ExpectedAnswer
from agentpeft.envs.os_interaction.grading.grader import set_up
from agentpeft.envs.os_interaction.grading.state import FileState, State
from agentpeft.envs.os_interaction.sandboxes.sandbox import CommandResult, SandboxLimits
from agentpeft.envs.os_interaction.tasks import OSTask, Script, Verdict

ORDER = OSTask(
    task_id="order",
    instruction="Create /srv/x with the line hello.",
    verdict=Verdict(State(files=(FileState("/srv/x", content="hello\n"),))),
    setup=Script("mkdir -p /srv"),
    gold=Script("echo hello > /srv/x"),
)
QUESTION = OSTask(
    task_id="question",
    instruction="How many files are in /srv/d?",
    verdict=Verdict(answer=ExpectedAnswer("2", "number")),
    setup=Script("mkdir -p /srv/d; touch /srv/d/a /srv/d/b"),
    wants_answer=True,
)


@pytest.fixture(scope="module")
def shared_env(sandbox_kind):
    env = OSInteractionEnv(
        task_source=Taskset([ORDER, QUESTION]), sandbox=sandbox_kind, command_timeout_s=4.0
    )
    yield env
    env.close()


@pytest.fixture
def env(shared_env):
    shared_env.reset(options={"task": "order"})
    return shared_env


def run(env, script):
    """Returns what a command shows."""
    return env.step(command_action(script))[0]


@pytest.mark.parametrize(
    "sandbox_kind",
    ["bubblewrap", pytest.param("docker", marks=pytest.mark.slow)],
    indirect=True,
)
def test_the_checkers_have_nothing_to_say(sandbox_kind):
    env = gymnasium.make("AgentPEFT/OSInteraction-v0", sandbox=sandbox_kind)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped, skip_render_check=True)
    check_text_env(env, seed=10, num_tasks=4)
    env.close()


def test_an_order_done_and_finished_is_a_success(env):
    assert run(env, "echo hello > /srv/x") == ""
    observation, reward, terminated, truncated, info = env.step("Act: finish")
    assert (observation, reward, terminated, truncated) == ("", 1.0, True, False)
    assert info["outcome"] is Outcome.SUCCESS
    assert env.mistake is None


def test_an_order_left_undone_is_a_failure(env):
    _, reward, terminated, _, info = env.step("Act: finish")
    assert (reward, terminated, info["outcome"]) == (-0.5, True, Outcome.FAILURE)
    assert env.mistake == "/srv/x must be 'file', is 'absent'"


@pytest.mark.parametrize(
    ("action", "outcome"),
    [("Act: answer(2)", "success"), ("Act: answer(3)", "failure"), ("Act: finish", "failure")],
)
def test_a_question_is_graded_by_its_answer(shared_env, action, outcome):
    shared_env.reset(options={"task": "question"})
    assert shared_env.step(action)[4]["outcome"] == outcome


def test_an_answer_ends_an_order_too(env):
    run(env, "echo hello > /srv/x")
    assert env.step("Act: answer(done)")[4]["is_success"]


def test_a_change_that_is_never_finished_is_no_success(env):
    for _ in range(5):
        info = env.step(command_action("echo hello > /srv/x"))[4]
    assert info["outcome"] is Outcome.TURN_LIMIT


def test_what_a_process_left_behind_writes_after_the_end_does_not_count(env):
    run(env, "(sleep 0.3; echo hello > /srv/x) &")
    assert env.step("Act: finish")[4]["outcome"] is Outcome.FAILURE


def test_directory_variables_functions_and_jobs_stay(env):
    run(env, "cd /srv; x=5; f() { echo f$x; }")
    run(env, "sleep 50 &")
    assert run(env, "pwd; f; jobs | grep -c sleep") == "/srv\nf5\n1"


def test_output_errors_and_status_are_shown_in_order(env):
    assert run(env, "echo a; echo b >&2; echo c; false") == "a\nb\nc\n[exit status 1]"
    assert run(env, "true") == ""
    assert run(env, "printf '\\377ok'") == "\ufffdok"


def test_a_command_over_its_time_is_killed_and_costs_its_turn(env):
    start_s = time.monotonic()
    observation, _, terminated, _, info = env.step(command_action("cd /srv; echo a; sleep 60"))
    assert time.monotonic() - start_s < 30
    assert observation.startswith("a\n[killed after 4 s]")
    assert (terminated, info["outcome"]) == (False, Outcome.ONGOING)
    assert run(env, "echo b") == "b"


def test_a_timeout_can_end_the_episode(sandbox_kind):
    settings = {"command_timeout_s": 0.5, "timeout_ends": True, "sandbox": sandbox_kind}
    env = OSInteractionEnv(task_source=Taskset([ORDER]), **settings)
    env.reset()
    info = env.step(command_action("sleep 60"))[4]
    env.close()
    assert info["outcome"] is Outcome.TIMEOUT


def test_a_shell_that_ends_comes_back_and_says_so(env):
    assert run(env, "x=1; exit 3").endswith("[the shell has ended; this is a new one]")
    assert run(env, "echo ${x:-none}") == "none"


def test_long_output_is_cut(sandbox_kind):
    settings = {"limits": {"max_output_chars": 500}, "sandbox": sandbox_kind}
    env = OSInteractionEnv(task_source=Taskset([ORDER]), **settings)
    env.reset()
    observation = run(env, "seq 100000")
    env.close()
    assert observation.startswith("1\n2\n")
    assert observation.endswith("99999\n100000")
    assert len(observation) < 700


@pytest.mark.parametrize("text", ["ls", "Act: bash ls", "Act: answer(1"])
def test_an_invalid_action_ends_the_episode(env, text):
    _, reward, terminated, _, info = env.step(text)
    assert (reward, terminated, info["outcome"]) == (-0.5, True, Outcome.INVALID_ACTION)


def test_eight_sandboxes_at_once_play_as_one_does(sandbox_kind):
    kwargs = {"sandbox": sandbox_kind, "skills": ["mkdir", "wc", "chown", "usermod"]}
    single = gymnasium.make("AgentPEFT/OSInteraction-v0", **kwargs)
    envs = gymnasium.make_vec("AgentPEFT/OSInteraction-v0", num_envs=8, **kwargs)
    observations, _ = envs.reset(seed=5)
    assert observations == tuple(single.reset(seed=seed)[0] for seed in range(5, 13))
    plans = [single.unwrapped.oracle_actions(task) for task in envs.get_attr("task")]
    assert [len(plan) for plan in plans] == [2] * 8
    envs.step([plan[0] for plan in plans])
    assert all(envs.step([plan[1] for plan in plans])[4]["is_success"])
    envs.close()
    single.close()


def test_no_sandbox_sees_another_ones_files(sandbox_kind):
    first, second = (
        OSInteractionEnv(task_source=Taskset([ORDER]), sandbox=sandbox_kind) for _ in range(2)
    )
    first.reset()
    second.reset()
    run(first, "echo hello > /srv/x; useradd anna")
    assert run(second, "cat /srv/x; id anna").count("No such file") == 1
    assert second.step("Act: finish")[4]["outcome"] is Outcome.FAILURE
    assert first.step("Act: finish")[4]["outcome"] is Outcome.SUCCESS
    first.close()
    second.close()


def test_prompts_state_the_task_the_turns_and_the_rules():
    env = OSInteractionEnv(task_source=Taskset([ORDER]), sandbox="bubblewrap", max_turns=3)
    assert env.config.max_turns == 3
    env.close()


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"prompt": "short"}, "unknown prompt 'short'"),
        ({"sandbox": "dokcer"}, "did you mean 'docker'"),
        ({"command_timeout_s": 0}, "command_timeout_s must be a number > 0"),
        ({"command_timeout_s": 30.0, "episode_timeout_s": 20.0}, "so it would have no effect"),
        ({"limits": {"memory": 5}}, "unknown limit 'memory'; did you mean 'memory_mib'"),
        ({"limits": {"memory_mib": 0}}, "memory_mib must be an integer >= 1"),
        ({"skills": ["chmd"]}, "did you mean 'chmod'"),
        ({"skills": []}, "at least one skill"),
        ({"task_source": Taskset([ORDER]), "split": "test"}, "give either task_source"),
        ({"sandbx": "docker"}, "did you mean 'sandbox'"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, problem):
    with pytest.raises(SettingsError, match=problem):
        OSInteractionEnv(**settings)


def test_limits_are_a_mapping_or_the_class_itself():
    for limits in ({"memory_mib": 64}, SandboxLimits(memory_mib=64)):
        OSInteractionEnv(limits=limits).close()


READ_STATUS = {
    "bash": "bash /srv/solve.sh",
    "python": "import sys; sys.exit(int(open('/srv/solve.sh').read().split()[1]))",
    "c": """\
#include <stdio.h>
int main(void) {
  int status = 1;
  FILE *file = fopen("/srv/solve.sh", "r");
  return file && fscanf(file, "exit %d", &status) == 1 ? status : 1;
}
""",
}


@pytest.mark.parametrize(
    ("language", "is_live", "statuses"),
    [
        ("bash", False, (0, 1, 97, 126, 255)),
        ("bash", True, (97,)),
        ("python", False, (0, 97)),
        ("c", False, (0, 97)),
    ],
)
def test_an_exit_status_that_the_agent_chooses_says_right_or_wrong_and_no_more(
    shared_env, language, is_live, statuses
):
    checks = (Script(READ_STATUS[language], language),)
    task = OSTask(
        task_id="chosen",
        instruction="Write /srv/solve.sh, which succeeds.",
        verdict=Verdict(checks=checks, is_live=is_live),
        setup=Script("mkdir -p /srv"),
    )
    for status in statuses:
        shared_env.reset(options={"task": task})
        run(shared_env, f"echo 'exit {status}' > /srv/solve.sh")
        outcome = shared_env.step("Act: finish")[4]["outcome"]
        assert outcome == ("failure" if status else "success"), status


def test_a_pattern_that_the_agent_has_left_is_at_worst_its_failure(shared_env):
    verdict = Verdict(checks=(Script("cat /srv/pattern"), "regex"))
    task = OSTask(task_id="pattern", instruction="?", verdict=verdict, wants_answer=True)
    for pattern, outcome in (("(", "failure"), ("x{2,1}", "failure"), ("a+", "success")):
        shared_env.reset(options={"task": task})
        run(shared_env, f"mkdir -p /srv; echo '{pattern}' > /srv/pattern")
        assert shared_env.step("Act: answer(aa)")[4]["outcome"] == outcome, pattern


class WithoutCompilers:
    """A sandbox whose image has no compiler, before the agent's first command."""

    def reset(self):
        pass

    def prepare(self, script, timeout_s):
        return CommandResult("", 1 if script.startswith("command -v g") else 0)


@pytest.mark.parametrize(("language", "compiler"), [("c", "gcc"), ("c++", "g++")])
def test_an_image_without_the_compiler_of_a_task_is_refused_before_the_agent_acts(
    language, compiler
):
    program, other = Script("int main() {}", language), Script("true")
    for setup, check in ((program, other), (None, program)):
        verdict = Verdict(checks=(check,))
        task = OSTask(task_id="x", instruction="?", verdict=verdict, setup=setup)
        with pytest.raises(DataError, match=f"task x: the image has no {re.escape(compiler)},"):
            set_up(task, WithoutCompilers())
    set_up(
        OSTask(task_id="x", instruction="?", verdict=Verdict(checks=(other,))), WithoutCompilers()
    )


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_messages_may_end_their_lines_as_they_like(env, end):
    script = "cd /srv\ncat > x <<'END'\nhello\nEND"
    message = f"I write it. \n\nAct: bash \n```bash \n{script}\n``` \n"
    assert env.step(message.replace("\n", end))[0] == ""
    env.step(f"Act: finish {end}")
    assert env.mistake is None


def test_characters_of_scripts_and_gold_arrive(shared_env):
    line = "a\t\t\rb\x01\x7f\x85\u2028c\t"
    task = OSTask(
        task_id="characters",
        instruction="Copy /srv/from to /srv/to.",
        verdict=Verdict(
            State(files=tuple(FileState(f"/srv/{name}", content=line) for name in ("from", "to"))),
            checks=(
                Script(f"[ \"$(cat /srv/to)\" = '{line}' ]"),
                Script(f"assert open('/srv/to', newline='').read() == {line!r}", "python"),
            ),
        ),
        setup=Script(f"mkdir -p /srv; printf %s '{line}' > /srv/from"),
        gold=Script(f"printf %s '{line}' > /srv/to"),
    )
    shared_env.reset(options={"task": task})
    for action in shared_env.oracle_actions(task):
        shared_env.step(action)
    assert shared_env.mistake is None
