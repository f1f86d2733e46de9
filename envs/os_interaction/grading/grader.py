"""Setting up, playing gold, and grading: what runs in a sandbox besides the agent's commands.

A state is read from the frozen files, from outside; check scripts run over them with the image's
own interpreter and tools, none of the episode's processes alive. Live checks are the exception:
they see placeholders of the processes, which are stopped (`live_checks.py`). The grader
does not judge how a task was done. What a check script itself executes or trusts of the files that
the agent has left (a script it runs, a configuration it reads) is the agent's; such checks are the
data's risk, and so is what a process is called.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from agentpeft.envs.core.errors import DataError
from agentpeft.envs.os_interaction.grading.answers import AnswerKind, ExpectedAnswer
from agentpeft.envs.os_interaction.sandboxes.sandbox import CommandResult, Sandbox, TrustedScript
from agentpeft.envs.os_interaction.tasks import OSTask, Script

_SETUP_TIMEOUT_S = 60.0
_CHECK_TIMEOUT_S = 60.0
_COMPILE = """\
compiler=$1 ending=$2 folder=$(mktemp -d)
printf %s "$3" > "$folder/main.$ending"
"$compiler" -o "$folder/main" "$folder/main.$ending" -lm || exit
shift 3
exec "$folder/main" "$@"
"""
_COMPILERS = {"c": ("gcc", "c"), "c++": ("g++", "cpp")}
_IN_HOME = "cd\n"

_Runner = Callable[[TrustedScript, float], CommandResult]


def set_up(task: OSTask, sandbox: Sandbox) -> None:
    """Makes a fresh sandbox ready for a task's first turn. Raises: DataError, EnvFault."""
    sandbox.reset()
    _need_compilers(task, sandbox)
    if task.setup is not None:
        result = _run_script(sandbox.prepare, task.setup, _SETUP_TIMEOUT_S, ())
        if result.exit_code != 0:
            raise DataError(f"task {task.task_id}: its set-up fails ({_reason(result)})")
    if task.start is not None:
        result = sandbox.run(task.start, _SETUP_TIMEOUT_S)
        if result.is_timeout:
            raise DataError(f"task {task.task_id}: its start command does not come back")


def _need_compilers(task: OSTask, sandbox: Sandbox) -> None:
    """Raises: DataError where the image cannot compile a task's programs.

    It is asked before the agent acts: a check's exit status may be the agent's choice.
    """
    checks = [check for check in task.verdict.checks if isinstance(check, Script)]
    languages = {script.language for script in (task.setup, *checks) if script is not None}
    for language, (compiler, _) in _COMPILERS.items():
        if language not in languages:
            continue
        if sandbox.prepare(f"command -v {compiler}", _SETUP_TIMEOUT_S).exit_code != 0:
            problem = f"the image has no {compiler}, which a {language} program of it needs"
            raise DataError(f"task {task.task_id}: {problem}")


def judge(task: OSTask, sandbox: Sandbox, answer: str | None) -> Iterator[str | None]:
    """Yields for each thing that must hold at an episode's end why it does not, or None.

    They are the answer, the parts of the state, and the checks; live checks come before the state.
    Nothing is looked at before it is asked for. Raises: DataError, EnvFault.
    """
    verdict = task.verdict
    if verdict.answer is not None:
        is_right = verdict.answer.allows(answer or "")
        wanted = f"the answer must be {verdict.answer.value!r:.200}, is {answer!r:.200}"
        yield None if is_right else wanted
    if verdict.is_live:  # freezing ends what its checks look at
        yield from _judge_checks(task, sandbox, answer)
    files = sandbox.freeze()
    if verdict.state is not None:
        yield from verdict.state.judge(files)
    if not verdict.is_live:
        yield from _judge_checks(task, sandbox, answer)


def find_mistake(task: OSTask, sandbox: Sandbox, judged: Iterable[str | None]) -> str | None:
    """Returns why an ended episode is wrong, of what `judge` yields; None if it is right."""
    mistake = next(filter(None, judged), None)
    is_lost = sandbox.has_lost_files and bool(task.verdict.state or task.verdict.checks)
    if mistake is None and is_lost:  # nothing there is not right
        return "the agent has ended its machine, and its files are gone"
    return mistake


def share_of_checks(judged: Sequence[str | None], untouched: Sequence[str | None]) -> float:
    """Returns how many things the agent made right, over those that were wrong at the start.

    Each thing that it made wrong counts against it. For training; it is no verdict.
    """
    num_right, num_at_start = judged.count(None), untouched.count(None)
    return max(0.0, (num_right - num_at_start) / max(1, len(untouched) - num_at_start))


def _judge_checks(task: OSTask, sandbox: Sandbox, answer: str | None) -> Iterator[str | None]:
    run = sandbox.check_live if task.verdict.is_live else sandbox.check
    known, checks = [answer or ""], task.verdict.checks
    for number, check in enumerate(checks):
        if not isinstance(check, Script):
            yield _find_answer_mistake(known[-1], check, answer)
            continue
        # A program's arguments would be in the list of processes that a live check reads.
        is_told = not (task.verdict.is_live and check.language in _COMPILERS)
        result = _run_script(run, check, _CHECK_TIMEOUT_S, tuple(known) if is_told else ())
        if result.exit_code != 0:
            # The checks after it are told what it would have printed, so they cannot be run.
            yield from [f"a check fails ({_reason(result)})"] * (len(checks) - number)
            return
        known.append(result.output.strip())
        yield None


def _find_answer_mistake(expected: str, kind: AnswerKind, answer: str | None) -> str | None:
    """Returns why an answer is not what a check's script printed; None if it is.

    The script may print what the agent has left, so that a pattern need not be one.
    """
    try:
        is_right = ExpectedAnswer(expected, kind).allows(answer or "")
    except DataError as error:
        return f"the answer must match what a check prints: {error}"
    return None if is_right else f"the answer must be {expected!r:.200}, is {answer!r:.200}"


def gold_output(task: OSTask, sandbox: Sandbox) -> str:
    """Returns what a task's gold script prints after its set-up. Raises: DataError, EnvFault."""
    if task.gold is None:
        raise DataError(f"task {task.task_id} has neither an answer nor a script that gives it")
    set_up(task, sandbox)
    return sandbox.run(task.gold.to_command(), _CHECK_TIMEOUT_S).output.strip()


def _run_script(
    run: _Runner, script: Script, timeout_s: float, args: tuple[str, ...]
) -> CommandResult:
    if script.language == "python":
        return run(TrustedScript(script.source, "python3", args), timeout_s)
    if script.language == "bash":
        return run(TrustedScript(_IN_HOME + script.source, "bash", args), timeout_s)
    args = (*_COMPILERS[script.language], script.source, *args)
    return run(TrustedScript(_COMPILE, "bash", args), timeout_s)


def _reason(result: CommandResult) -> str:
    how = "out of time" if result.is_timeout else f"exit status {result.exit_code}"
    return f"{how}: {result.output!r:.300}"
