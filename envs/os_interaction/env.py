"""`AgentPEFT/OSInteraction-v0`: shell tasks, each in its own sandbox."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path
from random import Random
from typing import Any, Unpack, get_args

from agentpeft.envs.core.actions import InvalidAction
from agentpeft.envs.core.errors import (
    SettingsError,
    check_choice,
    check_duration,
    check_path,
    shown,
)
from agentpeft.envs.core.rewards import Outcome
from agentpeft.envs.core.text_env import EpisodeConfig, Turn
from agentpeft.envs.generated_env import GeneratedTaskEnv, GeneratedTaskOptions
from agentpeft.envs.os_interaction.actions import (
    Finish,
    command_action,
    finish_action,
    parse_action,
)
from agentpeft.envs.os_interaction.generator import OSGenerator
from agentpeft.envs.os_interaction.grading.grader import (
    find_mistake,
    gold_output,
    judge,
    set_up,
    share_of_checks,
)
from agentpeft.envs.os_interaction.lapses import write_with_lapses
from agentpeft.envs.os_interaction.loaders import load_tasks
from agentpeft.envs.os_interaction.prompts import render_prompt
from agentpeft.envs.os_interaction.sandboxes.sandbox import (
    CommandResult,
    Sandbox,
    SandboxKind,
    SandboxLimits,
    make_sandbox,
)
from agentpeft.envs.os_interaction.tasks import OSTask, Script
from agentpeft.envs.tasks.task_files import TaskData


class OSInteractionEnv(GeneratedTaskEnv[OSTask]):
    """Change a Linux machine, or answer questions about it, with a shell in a few turns.

    ## Description
    LifelongAgentBench's and AgentBench's shell game. An episode has a Debian machine of its own, in
    a sandbox without network, and one root shell that lasts as long as the episode.

    ## Action Space
    `Unicode`: a message with "Act: bash" and a ```` ```bash ```` block (run it),
    "Act: answer(...)" (answer, and finish), or "Act: finish".

    ## Observation Space
    `Unicode`: after `reset` the prompt; after a command what it prints, long output without its
    middle, and a note where the exit status is not 0, where the command was killed, and where the
    shell is a new one; at the end nothing.

    ## Rewards
    Preset `os`: success 1.0, failure -0.5 (also for an invalid action and the turn limit). With
    `partial_credit`, a failure that the agent has finished earns more.

    ## Episode End
    With "Act: finish" or an answer (`success` or `failure`), an `invalid_action`, or the
    `turn_limit`. A command over its time is killed with all that it has started and costs its turn;
    with `timeout_ends` it ends the episode (`timeout`). Files, users and groups must be as the task
    says and an answer be the right one; both count only where the agent has finished.

    ## Arguments
    * `data`: a task file (LifelongAgentBench's `entry_dict.json` or hub rows, AgentBench's JSON),
      or `{"tasks": file, "index": file}` for the tasks that an index lists (without `tasks`
        those of the `entry_dict.json` beside it);
      None generates tasks without end. `scripts`: the folder of scripts that AgentBench's name.
    * `live_checks`: whether the file's check scripts see the episode's processes; None: those whose
      text looks at processes or sleeps.
    * `task_source`, `skills`, `split` and more: see `GeneratedTaskOptions`.
    * `sandbox`: "auto", "bubblewrap" or "docker"; `image`, `runtime`: see `make_sandbox`; `limits`:
      fields of `SandboxLimits`, such as `{"memory_mib": 256}`.
    * `command_timeout_s`: of one command.
    * `max_turns` (5), `invalid_ends`, `timeout_ends` (False), `reward`, …: see `EpisodeConfig`.

    ## Source
    LifelongAgentBench (Zheng et al., 2025, arXiv:2505.11942), after AgentBench (Liu et al., 2023,
    arXiv:2308.03688).

    ## Version History
    * v0: first version.
    """

    default_config = EpisodeConfig(max_turns=5, reward="os", timeout_ends=False)
    tools_module = "agentpeft.envs.os_interaction.tools"
    has_waiting_steps = True

    def __init__(  # noqa: PLR0913 (settings, by keyword only)
        self,
        *,
        data: TaskData | None = None,
        scripts: str | Path | None = None,
        live_checks: bool | None = None,
        sandbox: SandboxKind = "auto",
        image: str | None = None,
        runtime: str | None = None,
        limits: SandboxLimits | Mapping[str, float] | None = None,
        command_timeout_s: float = 20.0,
        **options: Unpack[GeneratedTaskOptions],
    ) -> None:
        """Raises: SettingsError, DataError (task file). The sandbox is made at the first reset."""
        if live_checks is not None and not isinstance(live_checks, bool):
            problem = f"live_checks must be True, False or None, got {shown(live_checks)}"
            raise SettingsError(problem)
        check_path("scripts", scripts)
        file_options = {"scripts": scripts and str(scripts), "live_checks": live_checks}
        super().__init__(OSGenerator, data, load_tasks, file_options, {}, **options)
        check_choice("sandbox", sandbox, get_args(SandboxKind))
        check_path("image", image, "a name or a path")
        check_path("runtime", runtime, "a name")
        check_duration("command_timeout_s", command_timeout_s)
        self._check_timeout("command_timeout_s", command_timeout_s)
        self.command_timeout_s = command_timeout_s
        self._sandbox_settings = (sandbox, _to_limits(limits), image, runtime)
        self._sandbox: Sandbox | None = None
        self._gold_sandbox: Sandbox | None = None
        self.mistake: str | None = None
        """Why the last finished episode failed; never shown to the agent."""

    @property
    def sandbox(self) -> Sandbox:
        """The episode's sandbox. Raises: EnvFault where none can be made."""
        if self._sandbox is None:
            self._sandbox = make_sandbox(*self._sandbox_settings)
        return self._sandbox

    def _solve(self, task: OSTask) -> Sequence[str]:
        """Returns the gold commands (where the task has some) and the end, with its answer.

        An answer that the task does not state is what the gold script prints in a sandbox.
        """
        commands = [] if task.gold is None else [command_action(task.gold.to_command())]
        if not task.wants_answer:
            return [*commands, finish_action(None)]
        expected = task.verdict.answer
        if expected is not None and expected.kind != "regex":
            return [*commands, finish_action(expected.value.replace("\n", " "))]
        return [*commands, finish_action(gold_output(task, self._second_sandbox()))]

    def _write_lapses(self, task: OSTask, rng: Random) -> OSTask:
        if task.gold is None or task.gold.language != "bash":
            return task
        gold = Script(write_with_lapses(task.gold.source, self.oracle_lapses, rng))
        taken, expected = replace(task, gold=gold), task.verdict.answer
        if gold == task.gold or expected is None:
            return taken
        printed = replace(expected, value=gold_output(taken, self._second_sandbox()))
        return replace(taken, verdict=replace(task.verdict, answer=printed))

    def __getstate__(self) -> dict[str, Any]:
        """Returns all but the episode; a copy makes sandboxes of its own."""
        return {**super().__getstate__(), "_sandbox": None, "_gold_sandbox": None}

    def _release(self) -> None:
        with ExitStack() as sandboxes:
            for sandbox in filter(None, (self._sandbox, self._gold_sandbox)):
                sandboxes.callback(sandbox.close)

    def _begin(self, task: OSTask) -> str:
        set_up(task, self.sandbox)
        config = self.config
        return render_prompt(
            task.instruction,
            self.prompt_style,
            config.max_turns,
            self.command_timeout_s,
            {"invalid": config.invalid_ends, "timeout": config.timeout_ends},
        )

    def _act(self, action: str) -> Turn:
        parsed = parse_action(action)
        if isinstance(parsed, InvalidAction):
            return self._refuse(parsed)
        if isinstance(parsed, Finish):
            return self._grade(parsed.answer)
        result = self.sandbox.run(parsed.script, self.command_timeout_s)
        outcome = Outcome.TIMEOUT if result.is_timeout else Outcome.ONGOING
        return Turn(self._to_text(result), outcome)

    def _grade(self, answer: str | None) -> Turn:
        sandbox = self.sandbox
        judged: Iterable[str | None] = judge(self.task, sandbox, answer)
        if self.partial_credit:
            judged = list(judged)
        self.mistake = find_mistake(self.task, sandbox, judged)
        if self.mistake is None:
            return Turn("", Outcome.SUCCESS)
        if sandbox.has_lost_files or not isinstance(judged, list):
            return Turn("", Outcome.FAILURE)
        untouched = self._second_sandbox()
        set_up(self.task, untouched)
        share = share_of_checks(judged, list(judge(self.task, untouched, None)))
        return Turn("", Outcome.FAILURE, self.partial_credit * share)

    def _second_sandbox(self) -> Sandbox:
        """Returns a machine that no agent uses."""
        if self._gold_sandbox is None:
            self._gold_sandbox = make_sandbox(*self._sandbox_settings)
        return self._gold_sandbox

    def _end(self, outcome: Outcome) -> None:  # noqa: ARG002 (its processes end in any case)
        self.sandbox.freeze()

    def _to_text(self, result: CommandResult) -> str:
        lines = [result.output.rstrip("\n")] if result.output.strip("\n") else []
        if result.is_timeout:
            lines.append(f"[killed after {self.command_timeout_s:g} s]")
        elif result.exit_code not in (0, None):
            lines.append(f"[exit status {result.exit_code}]")
        if result.is_new_shell:
            lines.append("[the shell has ended; this is a new one]")
        return "\n".join(lines)


def _to_limits(limits: SandboxLimits | Mapping[str, float] | None) -> SandboxLimits:
    if limits is None or isinstance(limits, SandboxLimits):
        return limits or SandboxLimits()
    if not isinstance(limits, Mapping):
        raise SettingsError(f"limits must be SandboxLimits or a mapping, got {shown(limits)}")
    for name in limits:
        check_choice("limit", name, [field.name for field in fields(SandboxLimits)])
    return SandboxLimits(**limits)  # type: ignore[arg-type]
